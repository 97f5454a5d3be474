"""`palermo.resume`, `current_job().save` and `.saved`: what is done again after which end of a run."""

import datetime
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import palermo as module
from palermo.core.message import MAX_SAVED
from palermo.errors import DecodeError, EncodeError, HeaderInvalid, JobFailed, UsageError
from palermo.jobs import registry
from palermo.testing import Palermo

Declare = Callable[..., Any]


@pytest.fixture
def job() -> Iterator[Declare]:
    """The decorator; its jobs are forgotten after the test."""
    before = set(registry.names())
    yield module.job
    for name in set(registry.names()) - before:
        registry.unregister(name)


class Broken(Exception):
    """The error of a job."""


def rows(last: int | None) -> Iterator[int]:
    """A table of seven rows, by key."""
    return iter(range((last or 0) + 1, 8))


async def rows_async(last: int | None) -> AsyncIterator[int]:
    for row in rows(last):
        yield row


def run_to_the_end(palermo: Palermo) -> None:
    """Run jobs until none is left, also those that have failed and are requeued once."""
    palermo.raise_failures = False
    palermo.work_until_idle()
    palermo.inspector().failed.requeue(module.JobFilter())
    palermo.work_until_idle()


ends = pytest.mark.parametrize("end", ["stop", "retry", "failure"])


@ends
@pytest.mark.parametrize("kind", ["key", "position", "token", "async key", "async position"])
def test_each_item_is_done_once_unless_it_fails(palermo: Palermo, job: Declare, kind: str, end: str) -> None:
    done: list[int] = []
    broken = [4]

    def do(row: int) -> None:
        if end != "stop" and row in broken:
            broken.remove(row)
            raise Broken
        done.append(row)

    @dataclass
    class Page:
        row: int
        next: str | None

    def pages(token: str | None) -> Iterable[Page]:
        first = int((token or "page-1").removeprefix("page-"))
        return [Page(row, f"page-{row + 1}" if row < 7 else None) for row in range(first, 8)]

    def loop() -> None:
        if kind == "key":
            for row in module.resume(rows, key=lambda row: row):
                do(row)
        elif kind == "token":
            for page in module.resume(pages, key=lambda page: page.next):
                do(page.row)
        else:
            for row in module.resume([1, 2, 3, 4, 5, 6, 7]):
                do(row)

    async def loop_async() -> None:
        if kind == "async key":
            async for row in module.resume(rows_async, key=lambda row: row):
                do(row)
        else:
            async for row in module.resume(rows_async(0)):
                do(row)

    job(name="loop", retries=1 if end == "retry" else 0, retry_on=Broken, backoff=0)(
        loop_async if kind.startswith("async") else loop
    )
    palermo.enqueue("loop")
    if end == "stop":
        palermo.interrupt_after(3)
        assert palermo.work() == 1
        assert done == [1, 2, 3]
    run_to_the_end(palermo)

    assert done == [1, 2, 3, 4, 5, 6, 7]
    assert not palermo.inspector().failed.list()


def test_loops_by_name_and_a_saved_value_are_kept_together(palermo: Palermo, job: Declare) -> None:
    done: list[Any] = []
    started = datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC)

    @job(name="migrate")
    def migrate() -> None:
        current = module.current_job()
        assert current is not None
        done.append(current.saved)
        current.save({"started": started, "id": uuid.UUID(int=1)})
        done.extend(f"copy {path}" for path in module.resume(["a", "b"], name="copy"))
        done.extend(f"check {path}" for path in module.resume(["a", "b"], name="check"))
        assert current.saved == {"started": started, "id": uuid.UUID(int=1)}

    migrate.enqueue()
    for items in (1, 2, 9):
        palermo.interrupt_after(items)
        palermo.work()

    saved = {"started": started, "id": uuid.UUID(int=1)}
    assert done == [None, "copy a", saved, "copy b", saved, "check a", "check b"]


def test_a_loop_that_ended_has_no_items_in_the_next_run(palermo: Palermo, job: Declare) -> None:
    done: list[int] = []

    @job(name="once", retries=1, retry_on=Broken, backoff=0)
    def once() -> None:
        done.extend(module.resume([1, 2]))
        current = module.current_job()
        assert current is not None
        if current.attempt == 1:
            raise Broken

    once.enqueue()
    run_to_the_end(palermo)

    assert done == [1, 2]


def test_an_error_that_the_job_catches_does_not_make_it_done(palermo: Palermo, job: Declare) -> None:
    done: list[int] = []

    @job(name="catching")
    def catching() -> None:
        try:
            for row in module.resume(rows, key=lambda row: row):
                done.append(row)  # noqa: PERF402
        except Exception:
            done.append(-1)

    catching.enqueue()
    palermo.interrupt_after(2)
    palermo.work()
    palermo.work()

    assert done == [1, 2, -1, 3, 4, 5, 6, 7]


def test_the_item_that_a_loop_breaks_off_at_is_not_done(palermo: Palermo, job: Declare) -> None:
    done: list[int] = []

    @job(name="breaking", retries=1, retry_on=Broken, backoff=0)
    def breaking() -> None:
        for row in module.resume(rows, key=lambda row: row):
            done.append(row)
            if row == 3 and done.count(3) == 1:
                break
        if done.count(3) == 1:
            raise Broken

    breaking.enqueue()
    run_to_the_end(palermo)

    assert done == [1, 2, 3, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("base", [10, 20])
def test_arguments_that_a_person_gives_begin_from_the_start(palermo: Palermo, job: Declare, base: int) -> None:
    done: list[int] = []

    @job(name="sync")
    def sync(base: int) -> None:
        for row in module.resume([1, 2, 3]):
            done.append(base + row)  # noqa: PERF401

    enqueued = sync.enqueue(10)
    palermo.interrupt_after(2)
    palermo.work()
    palermo.inspector().jobs.edit(enqueued.id, args=[base])
    palermo.work()

    assert done == [11, 12, base + 1, base + 2, base + 3]


@pytest.mark.parametrize(
    "options",
    [
        {"unique": "until_done"},
        {"unique": "until_start"},
        {"limit": 1},
        {"rate": "1000/s"},
        {"share": 2, "tenant": "t"},
    ],
    ids=str,
)
def test_a_job_with_a_key_a_limit_or_a_tenant_goes_on(palermo: Palermo, job: Declare, options: dict[str, Any]) -> None:
    done: list[int] = []
    given = {name: options.pop(name) for name in ("share",) if name in options}

    @job(name="sync", **options)
    def sync() -> None:
        done.extend(module.resume([1, 2, 3, 4]))

    enqueued = sync.options(**given).enqueue()
    for _ in range(2):
        palermo.interrupt_after(1)
        palermo.work()
        assert [one.id for one in palermo.enqueued(sync)] == [enqueued.id]
    palermo.work_until_idle()

    assert done == [1, 2, 3, 4]
    palermo.refute_enqueued()
    sync.enqueue()
    assert palermo.work_until_idle() == 1


def test_the_steps_behind_a_resumed_step_wait_for_its_end(palermo: Palermo, job: Declare) -> None:
    done: list[object] = []

    @job(name="copy")
    def copy() -> str:
        done.extend(module.resume([1, 2, 3]))
        return "copied"

    @job(name="report")
    def report(text: str) -> None:
        done.append(text)

    def flow(flow: module.Workflow) -> None:
        flow.step(report, flow.step(copy).output)

    made = module.workflow(name="flow")(flow).enqueue()
    palermo.work()
    palermo.interrupt_after(2)
    palermo.work()
    assert palermo.steps(made)["report"] == "waiting"
    palermo.work_until_idle()

    assert done == [1, 2, 3, "copied"]


@dataclass
class Unregistered:
    page: int


def saves(value: object) -> Callable[[Any], object]:
    return lambda current: current.save(value)


def loops(key: object) -> Callable[[Any], object]:
    """Do a loop whose items all have this key."""
    return lambda current: list(module.resume(rows, key=lambda row: key))


@pytest.mark.parametrize(
    ("save", "error", "text"),
    [
        (saves({"a": [object()]}), EncodeError, "the saved value, .*, cannot be saved: it.*a.*0.* is of type object"),
        (
            saves("é" * 600),
            EncodeError,
            "with the saved value, .* would save 1,2.. bytes; the maximum is 1,024. Save an id",
        ),
        (saves(Unregistered(1)), DecodeError, "Unregistered.*register_class"),
        (loops(object()), EncodeError, "the key of the loop, <object object at .*, cannot be saved"),
        (loops("x" * MAX_SAVED), EncodeError, "with the key of the loop, 'xxxx.* would save 1,0.. bytes"),
        (loops(float), EncodeError, "the key of the loop, <class 'float'>, cannot be saved"),
    ],
)
def test_what_cannot_be_saved_is_refused_at_once(
    palermo: Palermo, job: Declare, save: Callable[[Any], object], error: type[Exception], text: str
) -> None:
    saved: list[object] = []

    @job(name="bad")
    def bad() -> None:
        current = module.current_job()
        assert current is not None
        current.save(1)
        try:
            save(current)
        finally:
            saved.append(current.saved)

    bad.enqueue()
    with pytest.raises(error, match=text):
        palermo.work()
    assert saved == [1]


def test_two_loops_of_one_name_and_a_batch_job_are_refused(palermo: Palermo, job: Declare) -> None:
    @job(name="twice", retries=5, backoff=0)
    def twice() -> None:
        for item in module.resume([1, 2], name="outer"):
            done.extend((item, inner) for inner in module.resume([3], name="inner"))

    @job(name="batched", batch=2)
    def batched(items: list[int]) -> None:
        list(module.resume(items))

    done = list[tuple[int, int]]()
    twice.enqueue()
    with pytest.raises(UsageError, match=r"two palermo.resume loops named 'inner'.*name='import'"):
        palermo.work()
    with pytest.raises(ExceptionGroup):
        palermo.work_until_idle()
    assert done == [(1, 3)] * 6
    batched.enqueue(1)
    with pytest.raises(JobFailed, match="job batched takes batches"):
        palermo.work()


@pytest.mark.parametrize(
    ("source", "key", "text"),
    [
        (rows, None, "a function without key="),
        ([1], lambda row: row, "key= without a function"),
        (rows, "id", "key= is 'id'; give a function of an item"),
    ],
)
def test_a_source_that_does_not_fit_its_key_is_refused(source: Any, key: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        module.resume(source, key=key)


async def test_a_source_of_the_other_kind_names_the_loop_to_write() -> None:
    async def list_of_rows(last: int | None) -> list[int]:
        return list(rows(last))

    with pytest.raises(TypeError, match="Use `async for`"):
        list(module.resume(rows_async, key=lambda row: row))  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="Use `for`"):
        async for _ in module.resume(rows, key=lambda row: row):  # type: ignore[attr-defined]
            pass
    with pytest.raises(TypeError, match="asynchronous generator"):
        async for _ in module.resume(list_of_rows, key=lambda row: row):  # type: ignore[call-overload]
            pass


def test_outside_a_job_a_loop_only_iterates() -> None:
    assert list(module.resume(rows, key=lambda row: row)) == [1, 2, 3, 4, 5, 6, 7]
    assert list(module.resume([1, 2])) == list(module.resume([1, 2]))


def test_progress_counts_the_items_of_earlier_runs(
    palermo: Palermo, job: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[float | None, str]] = []
    monkeypatch.setattr(
        "palermo.jobs.current.CurrentJob.progress", lambda self, fraction, text="": shown.append((fraction, text))
    )

    @job(name="counted")
    def counted() -> None:
        list(module.resume(rows, key=lambda row: row, name="rows", total=8))

    counted.enqueue()
    palermo.interrupt_after(4)
    palermo.work()
    assert shown[-1] == (3 / 8, "rows 3 of 8")
    shown.clear()
    palermo.work()

    assert (shown[0], shown[-1]) == ((0.5, "rows 4 of 8"), (7 / 8, "rows 7 of 8"))


def test_a_header_of_another_program_that_means_nothing_fails_the_job(palermo: Palermo, job: Declare) -> None:
    from msgspec.structs import replace

    @job(name="foreign")
    def foreign() -> None:
        list(module.resume([1]))

    for text, error in (('{"at": 3}', HeaderInvalid), ("{", DecodeError)):
        enqueued = foreign.enqueue()
        (row,) = palermo.enqueued(foreign)
        assert row.id == enqueued.id
        message = replace(palermo.client.run(lambda broker: broker.browse("jobs")).messages[0], saved=text)
        palermo.inspector().queues.purge("jobs")
        palermo.client.run(lambda broker, message=message: broker.publish(message))
        with pytest.raises(error, match="saved"):
            palermo.work()
