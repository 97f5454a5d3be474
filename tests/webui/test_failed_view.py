"""The view of failed jobs keeps near to the queue, on each broker, and takes nothing from it."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.client.client import Client
from palermo.contract.sweep import SweepProgress
from palermo.core.topology import FAILED_QUEUE
from palermo.errors import BrokerUnavailable
from palermo.inspector.failed_filter import FailedFilter
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from palermo.webui.failed.operations import Operation, Operations, new_id
from palermo.webui.failed.view import CHANGED_PAUSE, COUNT_INTERVAL, FailedJobReader, FailedView
from tests.helpers import HANGS, eventually
from tests.inspector.jobs import failure, message, publish_failed, publish_many_failed

ALL = FailedFilter()


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    with Client(settings) as client:
        yield client


@pytest.fixture
def inspector(client: Client) -> Inspector:
    return Inspector(client)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def view(client: Client, inspector: Inspector, clock: Clock) -> Iterator[FailedView]:
    view = FailedView(inspector, FailedJobReader(client, client.settings.web_redact), clock=clock)
    yield view
    view.close()


def ids(view: FailedView) -> list[str]:
    return [each.message.id for each in view.index.page(ALL, offset=0, limit=1_000, newest=True)]


def later(view: FailedView, clock: Clock, seconds: float = 10.0) -> FailedView:
    """The view after a look, once so much time has passed."""
    clock.now += seconds
    assert view.update(20).ready
    return view


@pytest.fixture
def read(client: Client, view: FailedView, clock: Clock) -> FailedView:
    """A view that has read three failed jobs."""
    publish_many_failed(client, 3)
    return later(view, clock)


def fail_another(client: Client, id: str = "new") -> None:
    publish_failed(client, (message(id), failure(at=1_800_000_000)))


@pytest.fixture
def operations(inspector: Inspector, view: FailedView) -> Operations:
    return Operations(inspector, view)


def command(action: str, which: object, **more: object) -> Operation:
    values = {"by": "tester", "about": "jobs", "expected": None, **more}
    return Operation(id=new_id(), action=action, which=which, **values)  # type: ignore[arg-type]


def finished(operations: Operations, *what: Any, **more: Any) -> Operation:
    operation = operations.start(command(*what, **more), done=lambda _: None)
    assert operation.wait(HANGS)
    return operation


def test_looking_takes_nothing_and_leaves_the_order(client: Client, inspector: Inspector, view: FailedView) -> None:
    publish_many_failed(client, 50)

    assert view.update(20).ready

    assert ids(view) == [str(n) for n in reversed(range(50))]
    assert [row["id"] for row in inspector.failed.list(limit=1_000)] == [str(n) for n in range(50)]


def test_new_failures_appear_and_what_others_took_disappears(
    client: Client, inspector: Inspector, read: FailedView, clock: Clock
) -> None:
    inspector.failed.discard("1")
    fail_another(client)
    inspector.failed.requeue(["0"], queue="elsewhere")
    assert ids(later(read, clock)) == ["new", "2"]

    # The count does not tell of this change.
    inspector.failed.discard("2")
    fail_another(client, "newer")
    assert ids(later(read, clock, 600)) == ["newer", "new"]


def test_a_slow_reading_is_not_soon_repeated_unless_it_was_of_few_jobs(
    client: Client, read: FailedView, clock: Clock
) -> None:
    fail_another(client)

    clock.now += COUNT_INTERVAL
    read._state, read._counted = replace(read.state, took=100.0, behind=1), 1_000_000
    assert (read.update(0).reading, len(ids(read))) == (False, 3)
    clock.now += 100.0 * CHANGED_PAUSE
    read.update(20)
    assert len(ids(read)) == 4

    fail_another(client, "another")
    read._state = replace(read.state, took=100.0)
    assert len(ids(later(read, clock, 2.0))) == 5


def test_an_answer_that_did_not_count_says_so_until_a_reading_is_asked_for(client: Client, read: FailedView) -> None:
    fail_another(client)

    assert (read.update(20).is_current, len(ids(read))) == (False, 3)
    read.request_reading()
    assert (read.update(20).is_current, len(ids(read))) == (True, 4)


def test_a_reading_that_misses_a_job_is_behind_and_the_next_one_has_it(
    client: Client, read: FailedView, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_another(client)

    with monkeypatch.context() as patched:
        patched.setattr(read._reader, "read", lambda see, **_: SweepProgress(total=3, seen=3))
        assert later(read, clock).state.behind == 1

    assert len(ids(later(read, clock))) == 4


def test_an_index_that_was_emptied_is_filled_by_the_next_look(read: FailedView, clock: Clock) -> None:
    read.index._index.reset()
    assert ids(read) == []

    assert len(ids(later(read, clock, 2.0))) == 3


def test_a_requeue_is_known_at_once_and_costs_no_reading(
    inspector: Inspector, read: FailedView, operations: Operations, clock: Clock
) -> None:
    at = read.state.at

    done = finished(operations, "requeue", ["0", "2", "gone"], expected=3)
    clock.now += 2 * COUNT_INTERVAL
    state = read.update(0)

    assert (done.taken, done.gone) == (2, 1)
    assert (ids(read), state.at, state.behind) == (["1"], at, 0)
    assert [row["id"] for row in inspector.jobs.list("mail")] == ["0", "2"]


def test_a_job_that_cannot_be_requeued_is_told_of_and_stays(read: FailedView, operations: Operations) -> None:
    done = finished(operations, "requeue", ["1"], args=[1], kwargs={"x": object()}, expected=1)

    assert (done.status, done.taken, done.gone) == ("done", 0, 0)
    assert "stays in `failed`" in done.outcome()
    assert ids(read) == ["2", "1", "0"]


def test_an_interrupted_command_says_that_the_rest_stays() -> None:
    ended = command("requeue", ALL, status="failed", taken=3, problems=[BrokerUnavailable("connection lost.")])

    for said in ("Requeued 3 jobs, then failed. connection lost.", "give the command again", "both requeued and still"):
        assert said in ended.outcome()


def test_a_command_is_stopped_and_what_it_has_not_come_to_stays(
    inspector: Inspector, read: FailedView, operations: Operations
) -> None:
    operation = command("discard", ALL)
    operation.stop()

    operations.start(operation, done=lambda _: None)

    assert operation.wait(HANGS)
    assert (operation.status, operation.taken, len(ids(read))) == ("stopped", 0, 3)
    assert inspector.queues.size(FAILED_QUEUE) == 3


def test_a_command_runs_while_the_queue_is_being_read(
    client: Client, inspector: Inspector, view: FailedView, operations: Operations
) -> None:
    publish_many_failed(client, 400)
    view.update(0)

    finished(operations, "discard", ["399"], expected=1)

    eventually(lambda: view.update(0.5).ready)
    assert view.index.count(ALL) == inspector.queues.size(FAILED_QUEUE) == 399


def test_a_look_during_a_reading_does_not_wait_behind_it_for_a_count(
    client: Client, view: FailedView, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_another(client)
    go_on, counted, reader = threading.Event(), list[int](), view._reader
    read, counts = reader.read, reader.counts

    def read_late(*args: Any, **more: Any) -> SweepProgress:
        go_on.wait(HANGS)
        return read(*args, **more)

    monkeypatch.setattr(reader, "read", read_late)
    monkeypatch.setattr(reader, "counts", lambda: counted.append(1) or counts())

    looks = [view.update(0) for _ in range(3)]
    go_on.set()

    assert [(look.ready, look.reading) for look in looks] == [(False, True)] * 3
    assert len(counted) == 1
    eventually(lambda: view.update(0.5).ready)
    assert ids(view) == ["new"]


def test_a_reading_during_a_command_counts_the_jobs_it_holds(client: Client, read: FailedView, clock: Clock) -> None:
    assert read.state.behind == 0
    fail_another(client)
    clock.now += COUNT_INTERVAL

    with read.exclusive():
        look = read.update(0)

    assert (look.ready, look.is_current, look.behind, len(ids(read))) == (True, False, 0, 3)
    assert len(ids(later(read, clock))) == 4


def test_kept_commands_are_bounded(operations: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palermo.webui.failed.operations.MAX_KEPT", 3)

    done = [finished(operations, "discard", ["nowhere"], expected=1) for _ in range(6)]

    assert len(operations._all) <= 4
    assert operations.get(done[-1].id) is done[-1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_command_is_over_even_if_what_is_called_at_its_end_fails(operations: Operations) -> None:
    def fail(operation: Operation) -> None:
        raise OSError("no space left for the log")

    operation = operations.start(command("discard", ["nowhere"], expected=1), done=fail)

    assert operation.wait(HANGS)
    assert operations.running() == []


def test_a_view_that_is_closed_while_it_reads_gives_everything_back(client: Client, inspector: Inspector) -> None:
    publish_many_failed(client, 400)
    view = FailedView(inspector, FailedJobReader(client, client.settings.web_redact))
    view.update(0)

    view.close()

    eventually(lambda: inspector.queues.size(FAILED_QUEUE) == 400)
    assert not [thread for thread in threading.enumerate() if thread.name == "palermo-failed"]
