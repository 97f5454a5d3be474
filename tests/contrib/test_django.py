"""Palermo in a Django process: transactions, arguments, settings, pages, the example's outbox, Django's tasks."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import palermo
from palermo.client.client import Client
from palermo.core.lifecycle import Succeeded
from palermo.errors import ArgumentsInvalid, BrokerUnavailable, PublishRefused
from palermo.inspector.inspector import Inspector
from palermo.jobs import hooks, registry
from palermo.settings.settings import Settings
from palermo.testing import Palermo
from palermo.worker.child.executor import Executor
from tests.contrib import django_site
from tests.helpers import eventually

Waiting = Callable[[], list[str]]


@pytest.fixture
def shop(_own_world: None) -> Iterator[Any]:
    site = django_site.start()
    yield site
    site.views.bridge.close()


@pytest.mark.slow
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


ROOT = Path(__file__).parents[2]

Away = Callable[[], AbstractContextManager[Client]]


def test_a_job_is_stored_with_the_data_and_enqueued_after_the_commit(shop: Any, waiting: Waiting) -> None:
    with suppress(LookupError), shop.transaction.atomic():
        for number in range(200):  # more than a commit moves: they must not hinder the next
            shop.outbox.enqueue(shop.ship, number)
        raise LookupError
    with shop.transaction.atomic():
        first = shop.outbox.enqueue(shop.ship, 1)
        with suppress(LookupError), shop.transaction.atomic():
            shop.outbox.enqueue(shop.ship, 3)
            raise LookupError
        shop.outbox.enqueue(shop.ship.options(queue="slow", id="mine"), order_id=2)
        assert (waiting(), shop.outbox.waiting()[0], first.status()) == ([], 2, "outbox")

    assert waiting() == ["ship(order_id=2)", "ship(1)"]
    assert [job.status() for job in (first, palermo.job_by_id("mine"))] == ["pending", "pending"]
    assert (shop.outbox.sweep(min_age=0), shop.outbox.waiting()) == (0, (0, 0.0))


@palermo.job
def crowd() -> None:
    """A job whose queue is full."""


@crowd.hook
def before_enqueue() -> None:
    raise PublishRefused("the queue is full")


def test_a_sweep_moves_each_row_once_and_passes_one_that_can_never_go(shop: Any, away: Away, waiting: Waiting) -> None:
    @palermo.job
    def pack(number: int) -> None:
        """A job for which the broker is away once, and one of which is never enqueued."""

    @pack.hook
    def before_enqueue(number: int) -> None:
        if number == 2 and not refused:
            refused.append(number)
            raise BrokerUnavailable("it is away")
        if number == 3:
            raise LookupError("no such order")

    refused: list[int] = [2]
    with away():
        shop.outbox.enqueue(crowd)
        first, *_ = [shop.outbox.enqueue(pack, number) for number in (1, 2, 3, 4)]
        with pytest.raises(BrokerUnavailable):
            shop.outbox.sweep(min_age=0)
    refused.clear()

    assert shop.async_to_sync(first.status_async)() == "outbox"
    assert shop.outbox.sweep() == 0  # rows as young as these are left to the program that stored them
    with pytest.raises(BrokerUnavailable):
        shop.outbox.sweep(min_age=0)
    assert (waiting(), shop.outbox.waiting()[0]) == (["pack(1)"], 4)
    with pytest.raises(PublishRefused):
        shop.outbox.sweep(limit=1, min_age=0)
    assert waiting() == ["pack(1)", "pack(2)", "pack(4)"]
    assert [entry.error for entry in shop.OutboxEntry.objects.all()] == [None, "LookupError: no such order"]


def test_wrong_arguments_and_a_missing_table_are_told_at_once(shop: Any, client: Client) -> None:
    # The migration makes the table that the model describes.
    shop.call_command("makemigrations", "palermo_outbox", check=True, dry_run=True, verbosity=0)
    stored = shop.Order.objects.create(email="a@example.com", total=30)

    with pytest.raises(ArgumentsInvalid, match="Pass its id"):
        shop.outbox.enqueue(shop.ship, stored)
    with pytest.raises(ArgumentsInvalid):
        shop.outbox.enqueue(shop.ship)
    with (
        shop.override_settings(INSTALLED_APPS=["palermo.contrib.django", "orders"]),
        pytest.raises(shop.ImproperlyConfigured, match=r"INSTALLED_APPS, then run `manage.py migrate`"),
    ):
        shop.outbox.enqueue(shop.ship, 1)


@pytest.fixture
def tasks(shop: Any) -> Any:
    """The module with the tasks."""
    return shop.tasks


@pytest.fixture
def run(client: Client, executor: Executor) -> Callable[[], Any]:
    """Runs the first job that waits, as a slot does; its result."""

    def run() -> Any:
        [queue] = [row["name"] for row in Inspector(client).queues.list() if row["pending"]]
        [stored] = client.run(lambda broker: broker.browse(queue)).messages
        return executor.run(stored)

    return run


def test_a_task_is_a_job_with_its_name_queue_priority_and_time(tasks: Any, client: Client) -> None:
    result = tasks.add.enqueue(1, b=2)
    tasks.greet.enqueue("Ann")
    tasks.add.using(queue_name="mail", priority=-5).enqueue(1)
    later = tasks.add.using(run_after=datetime.now(UTC) + timedelta(hours=1)).enqueue(1)

    assert (result.status, result.args, result.kwargs) == (tasks.TaskResultStatus.READY, [1], {"b": 2})
    assert result.enqueued_at is not None
    [row] = Inspector(client).jobs.list("jobs").rows
    assert (row["id"], row["job"]) == (result.id, "tests.contrib.django_jobs.add")
    assert [row["priority"] for row in Inspector(client).jobs.list("mail").rows] == [5, 0]
    assert client.job_by_id(later.id).status() == "scheduled"
    assert tasks.add.get_result(later.id).status == tasks.TaskResultStatus.READY


@pytest.mark.parametrize(("chosen", "argument"), [("wait_for", 3), ("greet", "Ann"), ("attempt", 10)])
def test_a_worker_runs_the_function(tasks: Any, chosen: str, argument: Any, run: Callable[[], Any]) -> None:
    enqueued = getattr(tasks, chosen).enqueue(argument)

    result = run()

    assert isinstance(result, Succeeded)
    assert str(argument) in str(result.value)
    assert chosen != "attempt" or enqueued.id in str(result.value), "a task with context gets it, and nobody passes it"


def test_signals_are_sent_around_a_run(tasks: Any, run: Callable[[], Any]) -> None:
    heard: list[Any] = []

    def hear(sender: Any, task_result: Any, **_: Any) -> None:
        heard.append((task_result.task.name, str(task_result.status)))

    signals = (tasks.backend.task_enqueued, tasks.backend.task_started, tasks.backend.task_finished)
    for each in signals:
        each.connect(hear)
    try:
        tasks.break_down.enqueue()
        run()
    finally:
        for each in signals:
            each.disconnect(hear)

    assert heard == [("break_down", "READY"), ("break_down", "RUNNING"), ("break_down", "FAILED")]


def test_an_unknown_result_does_not_exist_and_wrong_options_are_told(tasks: Any, client: Client) -> None:
    for id in ("nobody", "", "x" * 300):
        with pytest.raises(tasks.TaskResultDoesNotExist):
            tasks.add.get_result(id)

    wrong = tasks.backend.PalermoBackend("other", {"OPTIONS": {"retires": 3}})

    assert list(tasks.task_backends["default"].check()) == []
    assert ["retires" in each.msg for each in wrong.check()] == [True]
