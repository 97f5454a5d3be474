"""Totals: what is added, what is bounded, and that they never fall."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from palermo.core.journal_records import RecordBatch, RecordKind
from palermo.metrics.totals import OTHER, JournalTotals, Names, Totals, label


def counts(queue: str = "mail", job: str = "send", **numbers: Any) -> dict[str, Any]:
    return {"kind": RecordKind.COUNTS, "at": 1.0, "queue": queue, "job": job, **numbers}


def batch(number: int, *records: dict[str, Any], source: str = "a") -> RecordBatch:
    return RecordBatch(position=number, writer="w", records=records, source=source, number=number)


class Reading:
    """A taker, and whether what the journal held before has been read."""

    def __init__(self, *, ready: bool = False) -> None:
        self.ready = ready
        self.taker = JournalTotals(lambda: self.ready)

    def numbers(self) -> dict[tuple[str, str], dict[str, int]]:
        return {pair: dict(tally.numbers) for pair, tally in self.taker.copy().items()}


def test_runs_add_up_by_queue_and_job_and_a_copy_stays_as_it_is() -> None:
    totals = Totals()
    for took in (0.1, 0.3):
        totals.count(RecordKind.SUCCEEDED, "mail", "send", 1.0, took)
    totals.count(RecordKind.FAILED, "mail", "send", None, None)
    totals.count(RecordKind.CANCELLED, "slow", "send", None, None)

    found = totals.copy()
    totals.count(RecordKind.SUCCEEDED, "mail", "send", 1.0, 1.0)

    assert dict(found["mail", "send"].numbers) == {"succeeded": 2, "failed": 1}
    assert (found["mail", "send"].run.count, found["mail", "send"].wait.sum) == (2, 2.0)
    assert found["mail", "send"].run.sum == pytest.approx(0.4)
    assert dict(found["slow", "send"].numbers) == {"cancelled": 1}


def test_names_take_bounded_room_and_are_labels_that_can_be_written() -> None:
    totals = Totals(most=10)
    for number in range(1_000):
        totals.count(RecordKind.FAILED, "mail", f"job-{number}", None, None)
    totals.count(RecordKind.FAILED, "mail", "job-3", None, None)

    found = totals.copy()

    assert len(found) == 11
    assert found[OTHER, OTHER].numbers["failed"] == 990
    assert found["mail", "job-3"].numbers["failed"] == 2
    assert label("x" * 10_000) == "x" * 200
    assert label("a\udc80b") == "a?b"
    names = Names(2)
    assert [names.of(name) for name in ("a", "b", "c", "a", "d")] == ["a", "b", OTHER, "a", OTHER]


def test_what_the_journal_held_before_gives_names_and_no_numbers() -> None:
    reading = Reading()
    reading.taker.take(batch(1, counts(succeeded=5, run={"10": 5})))
    reading.ready = True
    reading.taker.take(batch(2, counts(succeeded=2), {"kind": RecordKind.LOST, "at": 1.0, "count": 7}))

    assert reading.numbers() == {("mail", "send"): {"succeeded": 2}}
    assert reading.taker.copy()["mail", "send"].run.count == 0
    assert reading.taker.lost == 7


def test_a_batch_that_is_stored_or_read_twice_counts_once() -> None:
    reading = Reading(ready=True)
    batches = [batch(number, counts(failed=1)) for number in (1, 2, 2, 3)]
    batches += [batch(1, counts(failed=1), source="b")]
    for each in batches:
        reading.taker.take(each)
    reading.taker.reset()
    reading.ready = False
    for each in batches:
        reading.taker.take(each)
    reading.taker.take(batch(4, counts(failed=1)))

    assert reading.numbers() == {("mail", "send"): {"failed": 5}}


def test_what_is_no_number_counts_nothing() -> None:
    reading = Reading(ready=True)
    odd = counts(succeeded="many", failed=-3, run="long", wait=7), counts(queue=7)  # type: ignore[arg-type]
    lost = {"kind": RecordKind.LOST, "at": 1.0, "count": "some"}

    reading.taker.take(batch(1, *odd, {"kind": "unheard of", "at": 1.0}, lost))

    assert not any(reading.numbers().values())
    assert reading.taker.lost == 0


def test_threads_that_count_at_once_lose_nothing() -> None:
    totals = Totals()

    def count(_: int) -> None:
        for _ in range(2_000):
            totals.count(RecordKind.SUCCEEDED, "mail", "send", 0.1, 0.1)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(count, range(4)))

    assert totals.copy()["mail", "send"].numbers["succeeded"] == 8_000
