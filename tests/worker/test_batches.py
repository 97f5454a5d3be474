"""Jobs that take a list of what was enqueued."""

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

import palermo
from palermo.core.lifecycle import BatchResult, Dropped, Succeeded, results_of_each
from palermo.core.message import Message
from palermo.errors import OptionInvalid
from palermo.jobs.definition import define
from palermo.worker.ipc.shared_marks import SharedMarks
from palermo.worker.pools.forked_pool import result_of_rest
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.worker.bench import Bench

MODULE = "crew_batches"

DROPPED = Dropped("killed")


def batch(bench: Bench, *bodies: Any, **more: Any) -> Any:
    first, *others = (
        replace(bench.message([], **more), id=str(number), body=json.dumps(body).encode(), **more)
        for number, body in enumerate(bodies)
    )
    return bench.executor().run(replace(first, companions=tuple(others)))


def test_a_batch_is_one_call_with_a_list(bench: Bench) -> None:
    def job(items: list[int]) -> None:
        current = palermo.current_job()
        assert current is not None
        bench.seen.append((items, current.id, current.batch))

    bench.job(job, batch=10)

    assert batch(bench, [1], {"items": 2}, [3]) == BatchResult((Succeeded(),) * 3)
    assert batch(bench, ["one", "too many"], [4]).results[1:] == (Succeeded(),)
    assert bench.seen == [([1, 2, 3], "0", ("0", "1", "2")), ([4], "1", ("1",))]


def test_each_message_of_a_batch_has_its_own_outcome(bench: Bench) -> None:
    class Job:
        def process(self, items: "palermo.Batch[str]") -> None:
            items.done(0)
            items.fail(1, LookupError("no such row"))
            items.fail(2, palermo.Retry(delay=5.0))
            items.fail(-1, palermo.Discard("not ours"))
            raise ValueError("all others")

        def on_success(self, returned: object, items: list[str]) -> None:
            bench.seen.append(("done", items))

        def on_failure(self, error: BaseException, items: list[str]) -> None:
            bench.seen.append((type(error).__name__, items))

    bench.job(Job, batch=10, retries=1)
    calls = (["good"], ["two", "arguments"], ["bad"], ["later"], ["again"], ["last"], ["unwanted"])
    tries = (0, 0, 1, 0, 0, 1, 0)
    first, *others = (bench.message(args, policy_retries=n, retries=n) for args, n in zip(calls, tries, strict=True))

    # One that cannot be read is no item of the batch.
    results = bench.executor().run(replace(first, companions=tuple(others))).results

    done, unread, bad, later, again, last, unwanted = results
    assert done == Succeeded()
    assert unread.failure.exception_class == "palermo.errors.ArgumentsInvalid"
    assert (bad.failure.exception_class, bad.failure.message) == ("LookupError", "no such row")
    assert [each.delay for each in (later, again)] == [5.0, 20.0]
    assert last.failure.exception_class == "ValueError"
    assert unwanted == Dropped("not ours")
    told = {"good": "done", "bad": "LookupError", "later": "Retry", "again": "ValueError", "last": "ValueError"}
    assert bench.seen == [(how, [item]) for item, how in told.items()]


def test_a_mark_that_means_nothing_is_refused_in_words() -> None:
    items = palermo.Batch(["a"])

    with pytest.raises(IndexError, match="the batch has no item 1"):
        items.done(1)
    with pytest.raises(TypeError, match="give it an exception"):
        items.fail(0, "no")  # type: ignore[arg-type]
    assert items == ["a"]
    assert items.outcomes(None) == [None]


@pytest.mark.parametrize("pool", ["process", "async"])
def test_one_bad_row_does_not_run_the_others_again(rig: Rig, pool: str) -> None:
    for row in ("1", "bad", "2", "3"):
        rig.enqueue("store", [str(rig.notes_path), row])

    rig.burst("--pool", pool)

    stored = [one for line in rig.lines() for one in json.loads(line)]
    assert sorted(stored) == ["1", "2", "3", "bad", "bad"]
    assert list(rig.errors().values()) == [("ValueError", "bad row")]


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["process", "thread"])
def test_a_row_that_crashes_the_process_fails_alone(rig: Rig, pool: str) -> None:
    rows = (*map(str, range(9)), "bad", "behind", "them")  # ten are taken together
    for row in rows:
        rig.enqueue("crash", [str(rig.notes_path), row])

    rig.burst("-c", "1", "--pool", pool)

    noted = [json.loads(line) for line in rig.lines()]
    assert noted == [*([row, 10] for row in rows[:10]), ["bad", 1], ["behind", 2], ["them", 2]]
    assert [error for error, _ in rig.errors().values()] == ["palermo.errors.JobCrashed"]
    eventually(lambda: rig.pending() == 0)


def test_a_job_that_crashes_after_a_batch_is_not_done_by_the_marks_of_that(rig: Rig) -> None:
    for row in ("1", "2"):
        rig.enqueue("crash", [str(rig.notes_path), row])
    rig.enqueue("crew.exits", 3)

    rig.burst("-c", "1", modules=("crew_batches", "crew"))

    assert [json.loads(line) for line in rig.lines()] == [["1", 2], ["2", 2]]
    assert [error for error, _ in rig.errors().values()] == ["palermo.errors.JobCrashed"]


def test_rows_marked_as_done_are_done_also_if_the_others_were_killed(bench: Bench) -> None:
    marks = SharedMarks(slots=2)
    whole, *companions = (replace(bench.message([]), id=str(number)) for number in range(3))
    marks.clear(2, 3)
    marks.mark(2, 1, done=True)
    asked = list[str]()

    async def ask(rest: Message) -> BatchResult:
        asked.extend(one.id for one in (rest, *rest.companions))
        return BatchResult((DROPPED,) * len(asked))

    result = asyncio.run(result_of_rest(replace(whole, companions=tuple(companions)), marks.done(2, 3), ask))

    assert result == BatchResult((DROPPED, Succeeded(), DROPPED))
    assert asked == ["0", "2"]
    assert marks.done(1, 3) == [False] * 3
    assert results_of_each(Succeeded(), 3) == (Succeeded(),) * 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": 0}, "batch=0"),
        ({"batch": True}, "batch=True"),
        ({"batch": 5, "batch_wait": -1}, "batch_wait=-1"),
        ({"batch": 5, "keep_result": True}, "keep_result"),
    ],
)
def test_options_that_no_batch_can_have_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionInvalid, match=said):
        palermo.job(name="x", **options)(lambda items: None)
    with pytest.raises(OptionInvalid, match="exactly one parameter"):
        define(lambda a, b: None, name="x", batch=5)
