"""Palermo in a Django process: transactions, arguments, settings, pages."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import palermo
from palermo.client.client import Client
from palermo.errors import ArgumentsInvalid
from palermo.inspector.inspector import Inspector
from palermo.jobs import hooks, registry
from palermo.settings.settings import Settings
from tests.contrib import django_site
from tests.helpers import eventually

django_site.set_up()

from django.contrib.auth.models import User  # noqa: E402
from django.core import checks  # noqa: E402
from django.db import transaction  # noqa: E402
from django.test import AsyncClient, override_settings  # noqa: E402
from django.test import Client as Browser  # noqa: E402
from orders.jobs import send_receipt  # type: ignore[import-not-found] # noqa: E402
from orders.models import Order  # type: ignore[import-not-found] # noqa: E402

from palermo.contrib.django import enqueue_on_commit, views  # noqa: E402

Waiting = Callable[[], list[str]]


@pytest.fixture(autouse=True)
def _clean_site(_own_world: None) -> Iterator[None]:
    django_site.clear()
    django_site.add_hooks()
    yield
    views.bridge.close()


def order(**more: Any) -> tuple[str, dict[str, Any]]:
    return "/orders/", {"email": "a@example.com", "total": 30, "card": "good", **more}


def test_a_request_enqueues_on_commit(waiting: Waiting) -> None:
    answer = Browser().post(*order())

    assert answer.status_code == 201
    assert waiting() == [f"send_receipt({answer.json()['order']})"]


def test_a_request_that_is_rolled_back_enqueues_nothing(waiting: Waiting) -> None:
    assert Browser().post(*order(card="expired")).status_code == 402

    assert (waiting(), Order.objects.count()) == ([], 0)


def test_a_job_waits_for_the_outermost_commit(waiting: Waiting) -> None:
    with transaction.atomic():
        with transaction.atomic():
            enqueue_on_commit(send_receipt, 1)
            enqueue_on_commit(send_receipt.options(queue="slow"), order_id=2)
        assert waiting() == []

    assert waiting() == ["send_receipt(1)", "send_receipt(order_id=2)"]


def test_without_a_transaction_a_job_is_enqueued_at_once(waiting: Waiting) -> None:
    enqueue_on_commit(send_receipt, 1)

    assert waiting() == ["send_receipt(1)"]


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: [one], lambda one: {"order": one}])
def test_a_model_instance_is_refused_with_advice(wrap: Callable[[Any], Any], client: Client) -> None:
    stored = Order.objects.create(email="a@example.com", total=30)

    with pytest.raises(ArgumentsInvalid, match=rf"Pass its id, {stored.pk}, .*Order.objects.get\(pk="):
        send_receipt.enqueue(wrap(stored))
    with transaction.atomic(), pytest.raises(ArgumentsInvalid, match="model instance"):
        enqueue_on_commit(send_receipt, wrap(stored))
    with pytest.raises(ArgumentsInvalid, match=r"values_list\(.pk., flat=True\)"):
        send_receipt.enqueue(Order.objects.all())


def test_model_instances_pass_where_the_project_wants_them(client: Client) -> None:
    with override_settings(PALERMO={"model_arguments": True}):
        job = send_receipt.options(serializer="pickle").enqueue(Order(email="a@example.com", total=30))

    assert job.enqueued


def test_the_app_finds_settings_and_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PALERMO_URL")
    with override_settings(PALERMO={"url": "sqlite:////tmp/of-the-project.db", "publish_timeout": 1}):
        django_site.add_hooks()

        assert Settings.load().url == "sqlite:////tmp/of-the-project.db"
        assert Settings.load().publish_timeout == 30  # the variable is stronger

    assert registry.find("orders.jobs.send_receipt") is not None
    assert hooks.registered.of("around_process")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"URL": "amqp://"}, "there is no setting 'URL' in settings.PALERMO. Did you mean 'url'?"),
        ({"publish_timeout": "soon"}, "setting publish_timeout is 'soon' (from settings.PALERMO)"),
        ({"staff_role": "boss"}, "staff_role in settings.PALERMO is 'boss'"),
        (["url"], "settings.PALERMO is ['url'] and must be a dict"),
    ],
)
def test_wrong_settings_are_told_by_the_system_check(given: Any, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PALERMO_URL")
    with override_settings(PALERMO=given):
        if isinstance(given, dict):
            from palermo.contrib.django import configuration

            configuration.declare()
        errors = [str(each.msg) for each in checks.run_checks() if str(each.id).startswith("palermo")]

    assert len(errors) == 1
    assert told in errors[0]


def browser_of(**user: Any) -> Browser:
    browser = Browser()
    browser.force_login(User.objects.create_user("user", **user))
    return browser


def test_pages_are_for_staff_only() -> None:
    anonymous, customer = Browser(), browser_of()

    assert anonymous.get("/ops/jobs/").url == "/admin/login/?next=/ops/jobs/"  # type: ignore[attr-defined]
    assert anonymous.post("/ops/jobs/api/queues/mail/pause").status_code == 403
    assert customer.get("/ops/jobs/").status_code == 403
    assert customer.get("/ops/jobs/api/queues").status_code == 403


def test_staff_look_and_superusers_change(client: Client) -> None:
    send_receipt.enqueue(1)
    viewer = browser_of(is_staff=True)
    pause = {"path": "/ops/jobs/api/queues/mail/pause", "content_type": "application/json"}

    assert [row["name"] for row in viewer.get("/ops/jobs/api/queues").json()["rows"]] == ["failed", "mail"]
    assert viewer.post(**pause).status_code == 403
    User.objects.update(is_superuser=True)
    assert viewer.post(**pause).status_code == 200
    assert viewer.post(**pause, headers={"origin": "https://evil.example"}).status_code == 403

    assert [row["paused"] for row in Inspector(client).queues() if row["name"] == "mail"] == [True]
    eventually(lambda: {row["by"] for row in Inspector(client).audit().rows} == {"user"})


def test_forms_of_the_pages_work_with_their_own_tokens(client: Client) -> None:
    send_receipt.enqueue(1)
    with override_settings(PALERMO={"staff_role": "operator"}):
        browser = browser_of(is_staff=True)
        page = browser.get("/ops/jobs/queues").content.decode()
        token = page.partition('name="token" value="')[2].partition('"')[0]

        form = {"path": "/ops/jobs/queues/mail/pause", "content_type": "application/x-www-form-urlencoded"}

        assert browser.post(**form, data="token=wrong").status_code == 403
        assert browser.post(**form, data=f"token={token}").status_code == 303

    assert [row["paused"] for row in Inspector(client).queues() if row["name"] == "mail"] == [True]


def test_files_names_with_slashes_and_streams_pass_the_bridge(client: Client) -> None:
    send_receipt.options(queue="a/b").enqueue(1)
    browser = browser_of(is_staff=True)
    path = "/ops/jobs/api/queues/a%2Fb/jobs"

    assert b"EventSource" in browser.get("/ops/jobs/static/palermo.js").content
    assert browser.get("/ops/jobs/live").status_code == 204  # the pages ask for news now and then instead
    assert browser.get(path, RAW_URI=path).json()["total"] == 1
    assert browser.get("/ops/jobs/nothing").status_code == 404


def test_pages_work_under_asgi_too(client: Client) -> None:
    send_receipt.options(queue="a/b").enqueue(1)
    staff = User.objects.create_user("ann", is_staff=True)

    async def visit() -> tuple[int, int, int]:
        browser = AsyncClient()
        refused = await browser.get("/ops/jobs/queues")
        await browser.aforce_login(staff)
        page = await browser.get("/ops/jobs/queues")
        jobs = await browser.get("/ops/jobs/api/queues/mail/jobs")
        return refused.status_code, page.status_code, jobs.status_code

    assert asyncio.run(visit()) == (302, 200, 404)


def test_the_default_client_is_the_one_of_the_settings() -> None:
    assert palermo.job_by_id("1").status() == "unknown"
