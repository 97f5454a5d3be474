"""Palermo in a Django process: transactions, arguments, settings, pages."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import palermo
from palermo.client.client import Client
from palermo.errors import ArgumentsInvalid
from palermo.inspector.inspector import Inspector
from palermo.jobs import hooks, registry
from palermo.settings.settings import Settings
from palermo.testing import Palermo
from tests.contrib import django_site
from tests.helpers import eventually

Waiting = Callable[[], list[str]]


@pytest.fixture(autouse=True)
def shop(_own_world: None) -> Iterator[Any]:
    site = django_site.start()
    yield site
    site.views.bridge.close()


def test_a_job_waits_for_the_outermost_commit(shop: Any, waiting: Waiting, client: Client) -> None:
    with shop.transaction.atomic():
        with shop.transaction.atomic():
            job = shop.enqueue_on_commit(shop.send_receipt, 1)
            shop.enqueue_on_commit(shop.send_receipt.options(queue="slow"), order_id=2)
        assert (waiting(), job.status()) == ([], "unknown")
    with suppress(LookupError), shop.transaction.atomic():
        shop.enqueue_on_commit(shop.send_receipt, 3)
        raise LookupError
    shop.enqueue_on_commit(shop.send_receipt, 4)  # without a transaction: at once

    assert waiting() == ["send_receipt(1)", "send_receipt(4)", "send_receipt(order_id=2)"]
    assert (job.status(), client.job_by_id(job.id).status()) == ("pending", "pending")


def test_a_model_instance_is_refused_with_advice_unless_it_is_wanted(shop: Any, client: Client) -> None:
    stored = shop.Order.objects.create(email="a@example.com", total=30)

    for wrapped in (stored, [stored], {"order": stored}):
        with pytest.raises(ArgumentsInvalid, match=rf"Pass its id, {stored.pk}, .*Order.objects.get\(pk="):
            shop.send_receipt.enqueue(wrapped)
        with shop.transaction.atomic(), pytest.raises(ArgumentsInvalid, match="model instance"):
            shop.enqueue_on_commit(shop.send_receipt, wrapped)
    with pytest.raises(ArgumentsInvalid, match=r"values_list\(.pk., flat=True\)"):
        shop.send_receipt.enqueue(shop.Order.objects.all())
    with shop.override_settings(PALERMO={"model_arguments": True}):
        assert shop.send_receipt.options(serializer="pickle").enqueue(stored).enqueued


def test_the_app_finds_settings_and_jobs(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PALERMO_URL")
    with shop.override_settings(PALERMO={"url": "sqlite:////tmp/of-the-project.db", "publish_timeout": 1}):
        shop.configuration.declare()

        assert Settings.load().url == "sqlite:////tmp/of-the-project.db"
        assert Settings.load().publish_timeout == 30  # the variable is stronger

    assert registry.find("orders.jobs.send_receipt") is not None
    assert hooks.registered.of("before_first_fork")


@palermo.job
def count_orders() -> None:
    """Count the orders that the test's transaction has made."""
    from orders.models import Order  # type: ignore[import-not-found]

    counted.append(Order.objects.count())


@palermo.job
async def count_orders_async() -> None:
    """The same in a coroutine."""
    from orders.models import Order

    counted.append(await Order.objects.acount())


counted: list[int] = []


def test_a_job_without_queries_runs_in_a_test_that_may_not_query(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(connection: object) -> None:
        raise RuntimeError("Database access not allowed")

    connection = shop.connections["default"]
    connection.ensure_connection()  # as an earlier test has left it
    monkeypatch.setattr(type(connection), "ensure_connection", refuse)  # as pytest-django does
    ran: list[int] = []
    job = palermo.job(name="without_queries")(lambda number: ran.append(number))

    with Palermo() as test:
        job.enqueue(3)
        test.work()

    assert ran == [3]


def test_a_job_in_a_test_sees_the_transaction_of_the_test(shop: Any) -> None:
    counted.clear()
    with Palermo() as test, shop.transaction.atomic():
        shop.Order.objects.create(email="a@example.com", total=30)

        count_orders.enqueue()
        test.work()
        count_orders_async.enqueue()
        shop.async_to_sync(test.work_async)()  # as Django runs a test that is a coroutine

        assert shop.Order.objects.count() == 1
    assert counted == [1, 1]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"URL": "amqp://"}, "setting 'URL' in settings.PALERMO is unknown. Did you mean 'url'?"),
        ({"publish_timeout": "soon"}, "setting publish_timeout is 'soon' (from settings.PALERMO)"),
        ({"staff_role": "boss"}, "staff_role in settings.PALERMO is 'boss'"),
        (["url"], "settings.PALERMO is ['url']; it must be a dict"),
    ],
)
def test_the_check_tells_wrong_settings(shop: Any, given: Any, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PALERMO_URL")
    with shop.override_settings(PALERMO=given):
        if isinstance(given, dict):
            shop.configuration.declare()
        errors = [str(each.msg) for each in shop.checks.run_checks() if str(each.id).startswith("palermo")]

    assert len(errors) == 1
    assert told in errors[0]


def browser_of(shop: Any, **user: Any) -> Any:
    browser = shop.Client()
    browser.force_login(shop.User.objects.create_user("user", **user))
    return browser


def test_staff_look_and_superusers_change(shop: Any, client: Client) -> None:
    shop.send_receipt.enqueue(1)
    anonymous, browser = shop.Client(), browser_of(shop)
    pause = {"path": "/ops/jobs/api/queues/mail/pause", "content_type": "application/json"}
    ours = {"sec-fetch-site": "same-origin"}

    assert anonymous.get("/ops/jobs/").url == "/admin/login/?next=/ops/jobs/"
    assert anonymous.post(**pause).status_code == 403
    assert [browser.get(f"/ops/jobs/{path}").status_code for path in ("", "api/queues")] == [403, 403]
    shop.User.objects.update(is_staff=True)
    assert [row["name"] for row in browser.get("/ops/jobs/api/queues").json()["rows"]] == ["failed", "mail"]
    assert browser.post(**pause, headers=ours).status_code == 403
    shop.User.objects.update(is_superuser=True)
    for other in ({}, {"origin": "https://evil.example"}):
        assert browser.post(**pause, headers=other).status_code == 403
    assert browser.post(**pause, headers=ours).status_code == 200

    assert [row["paused"] for row in Inspector(client).queues.list() if row["name"] == "mail"] == [True]
    eventually(lambda: {row["by"] for row in Inspector(client).history.audit().rows} == {"user"})


def test_forms_files_names_with_slashes_and_streams_pass_the_bridge(shop: Any, client: Client) -> None:
    shop.send_receipt.options(queue="a/b").enqueue(1)
    form = {"path": "/ops/jobs/queues/pause", "content_type": "application/x-www-form-urlencoded", "data": ""}
    path = "/ops/jobs/api/queues/a%2Fb/jobs"
    with shop.override_settings(PALERMO={"staff_role": "operator"}):
        browser = browser_of(shop, is_staff=True)

        assert b"EventSource" in browser.get("/ops/jobs/static/palermo.js").content
        assert browser.get("/ops/jobs/live").status_code == 204  # the pages ask for news now and then instead
        assert browser.get(path, RAW_URI=path).json()["total"] == 1
        assert browser.get("/ops/jobs/nothing").status_code == 404
        assert '<form method="post" action="/ops/jobs/' in browser.get("/ops/jobs/queues").content.decode()
        assert browser.post(**form, headers={"origin": "https://evil.example"}).status_code == 403
        assert browser.post(**form, headers={"sec-fetch-site": "same-origin"}).status_code == 303
    assert Inspector(client).queues.all_paused()


def test_pages_work_under_asgi_too(shop: Any, client: Client) -> None:
    shop.send_receipt.options(queue="a/b").enqueue(1)
    visitor, browser = shop.AsyncClient(), shop.AsyncClient()
    # Here and not in a thread: Django would leave that thread's connection with its database unclosed.
    browser.force_login(shop.User.objects.create_user("ann", is_staff=True))

    async def visit() -> tuple[int, int, int]:
        refused = await visitor.get("/ops/jobs/queues")
        page = await browser.get("/ops/jobs/queues")
        jobs = await browser.get("/ops/jobs/api/queues/mail/jobs")
        return refused.status_code, page.status_code, jobs.status_code

    assert asyncio.run(visit()) == (302, 200, 404)
