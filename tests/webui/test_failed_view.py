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
def operations(inspector: Inspector, view: FailedView) -> Operations:
    return Operations(inspector, view)


def command(action: str, which: object, **more: object) -> Operation:
    values = {"by": "tester", "about": "jobs", "expected": None, **more}
    return Operation(id=new_id(), action=action, which=which, **values)  # type: ignore[arg-type]


def finished(operations: Operations, operation: Operation) -> Operation:
    operations.start(operation, done=lambda _: None)
    assert operation.wait(HANGS)
    return operation


def test_looking_takes_nothing_and_leaves_the_order(client: Client, inspector: Inspector, view: FailedView) -> None:
    publish_many_failed(client, 50)

    assert view.update(20).ready

    assert ids(view) == [str(n) for n in reversed(range(50))]
    assert [row["id"] for row in inspector.failed(limit=1_000)] == [str(n) for n in range(50)]


def test_new_failures_appear_and_what_others_took_disappears(
    client: Client, inspector: Inspector, view: FailedView, clock: Clock
) -> None:
    publish_many_failed(client, 5)
    later(view, clock)

    inspector.discard("3")
    publish_failed(client, (message("new"), failure(at=1_800_000_000)))
    inspector.requeue(["0", "1"])
    assert ids(later(view, clock)) == ["new", "4", "2"]

    # The count does not tell of this change.
    inspector.discard("4")
    publish_failed(client, (message("newer", queue="other"), failure(at=1_800_000_001)))
    assert ids(later(view, clock, 600)) == ["newer", "new", "2"]


def test_a_slow_reading_is_not_soon_repeated_unless_it_was_of_few_jobs(
    client: Client, view: FailedView, clock: Clock
) -> None:
    publish_many_failed(client, 3)
    state = later(view, clock).state
    publish_failed(client, (message("new"), failure()))

    clock.now += COUNT_INTERVAL
    view._state, view._counted = replace(state, took=100.0, behind=1), 1_000_000
    assert (view.update(0).reading, len(ids(view))) == (False, 3)
    clock.now += 100.0 * CHANGED_PAUSE
    view.update(20)
    assert len(ids(view)) == 4

    publish_failed(client, (message("another"), failure()))
    view._state = replace(view.state, took=100.0)
    assert len(ids(later(view, clock, 2.0))) == 5


def test_an_answer_that_did_not_count_says_so_until_a_reading_is_asked_for(
    client: Client, view: FailedView, clock: Clock
) -> None:
    publish_many_failed(client, 1)
    later(view, clock)
    publish_failed(client, (message("new"), failure()))

    assert (view.update(20).is_current, len(ids(view))) == (False, 1)
    view.request_reading()
    assert (view.update(20).is_current, len(ids(view))) == (True, 2)


def test_a_reading_that_misses_a_job_is_behind_and_the_next_one_has_it(
    client: Client, view: FailedView, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_many_failed(client, 2)
    later(view, clock)
    publish_failed(client, (message("new"), failure()))

    with monkeypatch.context() as patched:
        patched.setattr(view._reader, "read", lambda see, **_: SweepProgress(total=2, seen=2))
        assert later(view, clock).state.behind == 1

    assert len(ids(later(view, clock))) == 3


def test_an_index_that_was_emptied_is_filled_by_the_next_look(client: Client, view: FailedView, clock: Clock) -> None:
    publish_many_failed(client, 3)
    later(view, clock)
    view.index._index.reset()
    assert ids(view) == []

    assert len(ids(later(view, clock, 2.0))) == 3


def test_a_requeue_is_known_at_once_and_costs_no_reading(
    client: Client, inspector: Inspector, view: FailedView, operations: Operations, clock: Clock
) -> None:
    publish_many_failed(client, 10)
    at = later(view, clock).state.at

    done = finished(operations, command("requeue", ["2", "5", "gone"], expected=3))
    clock.now += 2 * COUNT_INTERVAL
    state = view.update(0)

    assert done.outcome() == "Requeued 2 jobs, 1 had gone."
    assert ids(view) == [str(n) for n in reversed(range(10)) if n not in (2, 5)]
    assert (state.at, state.behind) == (at, 0)
    assert [row["id"] for row in inspector.jobs("mail")] == ["2", "5"]


def test_a_job_that_cannot_be_requeued_is_told_of_and_stays(
    client: Client, view: FailedView, operations: Operations, clock: Clock
) -> None:
    publish_many_failed(client, 2)
    later(view, clock)

    done = finished(operations, command("requeue", ["1"], args=[1], kwargs={"x": object()}, expected=1))

    assert (done.status, done.taken, done.gone) == ("done", 0, 0)
    assert "stays in `failed`" in done.outcome()
    assert ids(view) == ["1", "0"]


def test_an_interrupted_command_says_that_the_rest_stays() -> None:
    ended = command("requeue", ALL, status="failed", taken=3, problems=[BrokerUnavailable("connection lost.")])

    for said in ("Requeued 3 jobs, then failed. connection lost.", "give the command again", "both requeued and still"):
        assert said in ended.outcome()


def test_a_command_is_stopped_and_what_it_has_not_come_to_stays(
    client: Client, inspector: Inspector, operations: Operations
) -> None:
    publish_many_failed(client, 50)
    operation = command("discard", ALL)
    operation.stop()

    finished(operations, operation)

    assert (operation.status, operation.taken) == ("stopped", 0)
    assert inspector.size(FAILED_QUEUE) == 50


def test_a_command_runs_while_the_queue_is_being_read(
    client: Client, inspector: Inspector, view: FailedView, operations: Operations
) -> None:
    publish_many_failed(client, 400)
    view.update(0)

    finished(operations, command("discard", ["399"], expected=1))

    eventually(lambda: view.update(0.5).ready)
    assert view.index.count(ALL) == inspector.size(FAILED_QUEUE) == 399


def test_a_look_during_a_reading_does_not_wait_behind_it_for_a_count(
    client: Client, view: FailedView, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_failed(client, (message("1"), failure()))
    go_on, counted = threading.Event(), []
    read, counts = FailedJobReader.read, FailedJobReader.counts

    def read_late(self: FailedJobReader, *args: Any, **more: Any) -> SweepProgress:
        go_on.wait(HANGS)
        return read(self, *args, **more)

    def count(self: FailedJobReader) -> dict[str, int]:
        counted.append(1)
        return counts(self)

    monkeypatch.setattr(FailedJobReader, "read", read_late)
    monkeypatch.setattr(FailedJobReader, "counts", count)

    looks = [view.update(0) for _ in range(3)]
    go_on.set()

    assert [(look.ready, look.reading) for look in looks] == [(False, True)] * 3
    assert len(counted) == 1
    eventually(lambda: view.update(0.5).ready)
    assert ids(view) == ["1"]


def test_a_reading_during_a_command_counts_the_jobs_it_holds(client: Client, view: FailedView, clock: Clock) -> None:
    publish_many_failed(client, 2)
    assert later(view, clock).state.behind == 0
    publish_failed(client, (message("3"), failure()))
    clock.now += COUNT_INTERVAL

    with view.exclusive():
        look = view.update(0)

    assert (look.ready, look.is_current, look.behind, ids(view)) == (True, False, 0, ["1", "0"])
    assert ids(later(view, clock)) == ["3", "1", "0"]


def test_kept_commands_are_bounded(operations: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palermo.webui.failed.operations.MAX_KEPT", 3)

    done = [finished(operations, command("discard", ["nowhere"], expected=1)) for _ in range(6)]

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

    eventually(lambda: inspector.size(FAILED_QUEUE) == 400)
    assert not [thread for thread in threading.enumerate() if thread.name == "palermo-failed"]
