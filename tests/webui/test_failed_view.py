"""The view of failed jobs keeps near to the queue and takes nothing from it; its index answers as the queue would."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.client.client import Client
from palermo.contract.sweep import SweepProgress
from palermo.core.failure import Failure
from palermo.core.message import Message
from palermo.core.topology import FAILED_QUEUE
from palermo.errors import BrokerUnavailable
from palermo.inspector.inspector import Inspector
from palermo.inspector.judges import GroupJudge
from palermo.views.facts import facts_of_failed
from palermo.views.filter import JobFilter
from palermo.webui import tuning
from palermo.webui.failed.entry import EntryBuilder, split
from palermo.webui.failed.index import Index
from palermo.webui.failed.operations import Operation, Operations
from palermo.webui.failed.view import FailedJobReader, FailedView
from tests.helpers import HANGS, eventually
from tests.inspector.jobs import failure, message, publish_failed, publish_many_failed

ALL = JobFilter()


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


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


class Commands:
    """Commands on the failed jobs of one view."""

    def __init__(self, inspector: Inspector, view: FailedView) -> None:
        self.operations = Operations()
        self._inspector, self._view = inspector, view

    def finished(
        self, action: str, which: Any, *, operation: Operation | None = None, done: Any = repr, **changes: Any
    ) -> Operation:
        operation = operation or command(action, expected=len(which))

        def act(operation: Operation) -> None:
            getattr(self._inspector.failed, action)(which, **changes, **self._view.watching(operation.watching()))

        self.operations.start(operation, act, turn=self._view.exclusive(), done=done)
        assert operation.wait(HANGS)
        return operation


@pytest.fixture
def commands(inspector: Inspector, view: FailedView) -> Commands:
    return Commands(inspector, view)


def command(action: str, **more: Any) -> Operation:
    return Operation(action=action, by="tester", about="jobs", **more)


def test_changes_of_others_are_seen(client: Client, inspector: Inspector, read: FailedView, clock: Clock) -> None:
    inspector.failed.discard("1")
    fail_another(client)
    inspector.failed.requeue(["0"], queue="elsewhere")
    assert ids(later(read, clock)) == ["new", "2"]

    # The count does not tell of this change.
    inspector.failed.discard("2")
    fail_another(client, "newer")
    assert ids(later(read, clock, 600)) == ["newer", "new"]


def test_only_a_slow_reading_of_few_jobs_is_soon_repeated(client: Client, read: FailedView, clock: Clock) -> None:
    fail_another(client)

    clock.now += tuning.BRIEF
    read._state, read._counted = replace(read.state, took=100.0, behind=1), 1_000_000
    assert (read.update(0).reading, len(ids(read))) == (False, 3)
    clock.now += 100.0 * tuning.PAUSE
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


def test_a_requeue_reads_nothing(inspector: Inspector, read: FailedView, commands: Commands, clock: Clock) -> None:
    at = read.state.at

    done = commands.finished("requeue", ["0", "2", "gone"])
    clock.now += 2 * tuning.BRIEF
    state = read.update(0)

    assert (done.taken, done.gone) == (2, 1)
    assert (ids(read), state.at, state.behind) == (["1"], at, 0)
    assert [row["id"] for row in inspector.jobs.list("mail")] == ["0", "2"]


def test_a_job_that_cannot_be_requeued_is_told_of_and_stays(read: FailedView, commands: Commands) -> None:
    done = commands.finished("requeue", ["1"], args=[1], kwargs={"x": object()})

    assert (done.status, done.taken, done.gone) == ("done", 0, 0)
    assert "remains in `failed`" in done.outcome()
    assert ids(read) == ["2", "1", "0"]


def test_an_interrupted_command_says_that_the_rest_stays() -> None:
    ended = command("requeue", status="failed", taken=3, problems=[BrokerUnavailable("connection lost.")])

    for said in ("Requeued 3 jobs, then failed. connection lost.", "Repeat the command", "both requeued and still"):
        assert said in ended.outcome()


def test_a_stopped_command_leaves_the_rest(inspector: Inspector, read: FailedView, commands: Commands) -> None:
    operation = command("discard")
    operation.stop()

    commands.finished("discard", ALL, operation=operation)

    assert (operation.status, operation.taken, len(ids(read))) == ("stopped", 0, 3)
    assert inspector.queues.size(FAILED_QUEUE) == 3


@pytest.mark.slow
def test_a_command_runs_while_the_queue_is_being_read(
    client: Client, inspector: Inspector, view: FailedView, commands: Commands
) -> None:
    publish_many_failed(client, 400)
    view.update(0)

    commands.finished("discard", ["399"])

    eventually(lambda: view.update(0.5).ready)
    assert view.index.count(ALL) == inspector.queues.size(FAILED_QUEUE) == 399


def test_a_look_waits_for_no_reading(client: Client, view: FailedView, monkeypatch: pytest.MonkeyPatch) -> None:
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
    clock.now += tuning.BRIEF

    with read.exclusive():
        look = read.update(0)

    assert (look.ready, look.is_current, look.behind, len(ids(read))) == (True, False, 0, 3)
    assert len(ids(later(read, clock))) == 4


def test_kept_commands_are_bounded(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "MANY", 3)

    done = [commands.finished("discard", ["nowhere"]) for _ in range(6)]

    assert len(commands.operations._all) <= 4
    assert commands.operations.get(done[-1].id) is done[-1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_command_is_over_even_if_what_is_called_at_its_end_fails(commands: Commands) -> None:
    def fail(operation: Operation) -> None:
        raise OSError("no space left for the log")

    commands.finished("discard", ["nowhere"], done=fail)

    assert commands.operations.running() == []
    # Its thread ends here, so that its error is not taken for one of the next test.
    eventually(lambda: "palermo-discard" not in {thread.name for thread in threading.enumerate()})


def test_a_view_that_is_closed_while_it_reads_gives_everything_back(client: Client, inspector: Inspector) -> None:
    publish_many_failed(client, 400)
    view = FailedView(inspector, FailedJobReader(client, client.settings.web_redact))
    view.update(0)

    view.close()

    eventually(lambda: inspector.queues.size(FAILED_QUEUE) == 400)
    assert not [thread for thread in threading.enumerate() if thread.name == "palermo-failed"]


# -- the index


def failed(id: str, reason: Failure | None, **fields: object) -> Message:
    return replace(message(id, id, **fields), failure=reason, retries=0)  # type: ignore[arg-type]


_TWO_LINES = Failure(
    exception_class="shop.errors.Refused",
    message="first line\nat second.line",
    stack_trace='Traceback\n  File "a/b.py", line 1, in work\nshop.errors.Refused: first line\nat second.line\n',
    failed_at=300,
)

JOBS = [
    failed("a-1", failure("ValueError", "no such address", at=100), queue="mail", job="shop.send"),
    failed("a-2", failure("ValueError", "no such ADDRESS", at=200), queue="mail", job="shop.send"),
    failed("b-1", failure("shop.errors.Refused", "Straße <b>&</b>", at=200), queue="orders", job="shop.pay"),
    failed("b-2", _TWO_LINES, queue="orders", job="shop.pay[1]"),
    failed("c-1", None, queue="mail", job=""),
    failed("c-2", replace(failure("KeyError", ""), stack_trace="", failed_at=0), queue="x*y", preview="'Zürich', 1"),
    replace(failed("r-1", failure("KeyError", "again", at=250)), retries=3, policy_retries=2),
    replace(failed("r-2", failure("KeyError", "by policy", at=260)), retries=2, policy_retries=2),
    replace(failed("w-1", failure("OSError", "gone", at=270)), worker="pid:7@web-1/worker-2", tenant="acme"),
    replace(failed("w-2", failure("OSError", "gone", at=270)), worker="pid:8@web-2/worker-2", tenant="acme.eu"),
    failed("d-1", replace(failure("Bad\ud800", "lone \ud800 surrogate"), failed_at=10**12), queue="mail"),
]


@pytest.fixture
def index() -> Iterator[Index]:
    index = Index()
    yield index
    index.close()


def put(index: Index, messages: list[Message], reading: int = 1) -> None:
    taking = EntryBuilder(lambda message: message.preview)
    index.put([taking.entry(each) for each in messages], reading)


def ids_in(index: Index, filter: JobFilter = ALL, *, newest: bool = False) -> list[str]:
    return [each.message.id for each in index.page(filter, offset=0, limit=100, newest=newest)]


def test_groups_are_those_of_the_command_line_and_hold_their_jobs(index: Index) -> None:
    put(index, JOBS)
    grouping = GroupJudge(JobFilter())
    for each in JOBS:
        grouping(each)

    groups, total = index.groups(JobFilter())

    assert total == len(groups) == len(grouping.rows())
    known = [(row["fingerprint"], row["count"], row["id"]) for row in grouping.rows()]
    assert [(each.fingerprint, each.count, each.sample.id) for each in groups] == known
    one = JobFilter(group=groups[0].fingerprint)
    assert sorted(ids_in(index, one)) == sorted(each.id for each in JOBS if one.matches(facts_of_failed(each)))
    assert index.count(one) == groups[0].count == 2


def test_a_history_counts_each_failure_once(index: Index) -> None:
    put(index, [failed(str(n), failure(at=1_000 + n)) for n in range(100)])

    [group], _ = index.groups(JobFilter(), parts=10)

    assert group.history == (10,) * 10


def test_newest_first_is_by_time_then_by_place_and_a_copy_counts_not(index: Index) -> None:
    copy = failed("1", failure(at=70))
    put(index, [failed("1", failure(at=50)), failed("2", failure(at=70)), failed("3", failure(at=50)), copy])

    assert ids_in(index, newest=True) == ["2", "3", "1"]
    assert ids_in(index) == ["1", "3", "2"]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.id)
def test_a_job_comes_back_as_it_was(index: Index, job: Message) -> None:
    put(index, JOBS)

    found = index.job(job.id)

    assert found is not None
    assert found.whole
    trace = job.failure and job.failure.stack_trace.encode(errors="replace").decode()
    reason = found.message.failure
    assert (found.message.body, found.message.queue, found.message.job) == (job.body, job.queue, job.job)
    assert (reason and reason.stack_trace) == trace
    assert (reason and reason.failed_at) == (job.failure and job.failure.failed_at)


def test_a_reading_forgets_what_is_gone_and_knows_the_new_error_of_a_job(index: Index) -> None:
    put(index, [failed("1", failure("ValueError", at=50)), failed("2", failure(at=60)), failed("3", failure())], 1)
    put(index, [failed("2", failure(at=60)), replace(failed("1", failure("KeyError", at=50)), retries=1)], 2)
    index.drop_unseen(2)

    assert ids_in(index, JobFilter(error="KeyError")) == ["1"]
    assert index.count(JobFilter(error="ValueError")) == 1
    assert index.count(JobFilter()) == index.count(JobFilter(text="address")) == 2
    assert index.job("3") is None


def test_beyond_the_bound_the_oldest_are_left_out(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "MAX_JOBS", 3)

    put(index, [failed(str(n), failure(at=n + 1)) for n in range(10)])
    index.drop_unseen(1)

    assert ids_in(index) == ["7", "8", "9"]


def test_bodies_beyond_the_bound_are_forgotten_oldest_first(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "MAX_BYTES", 1_000)
    monkeypatch.setattr(tuning, "LIMIT", 1)

    put(index, [replace(failed(str(n), failure(at=n + 1)), body=b"x" * 300) for n in range(10)])

    assert [each.whole for each in index.page(ALL, offset=0, limit=10, newest=True)] == [True] * 3 + [False] * 7


def test_a_reading_in_which_the_index_was_emptied_does_not_complete_it(index: Index) -> None:
    put(index, JOBS[:3])
    version = index.version
    index._index.reset()
    assert index.version > version
    put(index, JOBS[3:])
    index.drop_unseen(1)
    assert not index.complete

    put(index, JOBS, 2)
    index.drop_unseen(2)

    assert index.complete


@pytest.mark.parametrize(
    ("trace", "message", "frames"),
    [
        ("Traceback\n  File\nValueError: x is 1\n", "x is 1", "Traceback\n  File\n"),
        ("Traceback\n  File\nValueError\n", "", "Traceback\n  File\n"),
        ("Traceback\n  File\nValueError: a\nb\n", "a\nb", "Traceback\n  File\n"),
        ("Traceback\n", "elsewhere", "Traceback\n"),
        ("", "", ""),
    ],
)
def test_a_traceback_is_split_before_the_line_that_says_the_message(trace: str, message: str, frames: str) -> None:
    assert split(trace, message) == (frames, trace[len(frames) :])
