"""Statistics of what is in a journal, without one: batches in, numbers out."""

from typing import Any

import pytest

from palermo.core.journal_records import RecordBatch, RecordKind, decode, encode, encode_record
from palermo.history.series import COARSE, FINE, Dimension, Tally, Window, begin
from palermo.history.statistics import Deploys, Statistics
from tests.history.written import counts

#: The beginning of a day.
MIDNIGHT = 1_795_219_200.0


def up(at: float, release: str) -> Any:
    return {"kind": "worker_up", "at": at, "worker": "w", "release": release}


def batch(*records: Any, writer: str = "pid:1@a") -> RecordBatch:
    return decode(0, encode(writer, [*map(encode_record, records)]))


def read(now: float, *batches: RecordBatch, **more: Any) -> Statistics:
    found = Statistics(**{"clock": lambda: now, **more})
    for each in batches:
        found.take(each)
    return found


def rows(statistics: Statistics, by: str, window: Window = Window.HOUR) -> dict[str | None, int]:
    report = statistics.report(window)
    assert report is not None
    return {each.name: each.tally.processed for each in report.parts[by]}


def test_what_writers_counted_is_added_up_by_queue_job_and_worker() -> None:
    now = MIDNIGHT + 1_000
    found = read(
        now,
        batch(counts(now - 9, succeeded=5, failed=1), counts(now - 8, "slow", "shop.resize", succeeded=2)),
        batch(counts(now - 7, succeeded=10, retried=3), writer="pid:2@b"),
        batch(counts(now - 6, enqueued=30), writer="client:7@web"),
    )

    report = found.report(Window.HOUR)

    assert report is not None
    assert (report.total.processed, report.total.failed, report.total.number("enqueued")) == (21, 4, 30)
    assert rows(found, "queue") == {"mail": 19, "slow": 2}
    assert rows(found, "job") == {"shop.send": 19, "shop.resize": 2}
    assert rows(found, "worker") == {"pid:2@b": 13, "pid:1@a": 8}
    asked = [found.report(Window.DAY, **{by: name}) for by, name in (("queue", "slow"), ("worker", "pid:2@b"))]
    assert [report and report.total.processed for report in asked] == [2, 13]
    assert found.report(Window.DAY, queue="no such") is None


def test_processed_and_failed_are_what_workers_count() -> None:
    def counted(outcome: str) -> tuple[int, int]:
        tally = Tally()
        tally.read({outcome: 1})
        return tally.processed, tally.failed

    ended = ("succeeded", "expanded", "failed", "retried", "snoozed", "discarded")
    outcomes = (*ended, "released", "cancelled", "enqueued")
    every = Tally()
    every.read(dict.fromkeys(RecordKind, 1))

    assert [counted(outcome) for outcome in outcomes] == [(1, 0), (1, 0), (1, 1), (1, 1), (1, 0), (1, 0), *[(0, 0)] * 3]
    assert {*outcomes} == {*every.numbers}


@pytest.mark.parametrize("window", list(Window))
def test_the_cells_of_a_window_lie_side_by_side_and_add_up_to_its_total(window: Window) -> None:
    now = MIDNIGHT + 12_345
    ago = [0, 40, 1_700, 3_000, 40_000, 80_000, 400_000, 2_000_000]
    found = read(now, batch(*(counts(now - each, succeeded=1) for each in ago)))

    report = found.report(window)

    assert report is not None
    assert (
        sum(cell.tally.processed for cell in report.cells)
        == report.total.processed
        == rows(found, "queue", window)["mail"]
    )
    assert report.total.processed == sum(each <= now - report.since for each in ago)
    assert report.cells[0].start == report.since == begin(window, now)
    assert report.cells[-1].start <= now < report.cells[-1].start + report.cells[-1].seconds
    steps = {later.start - cell.start for cell, later in zip(report.cells, report.cells[1:], strict=False)}
    assert steps == {FINE[window].cell}
    assert 0.95 * FINE[window].span < now - report.since <= FINE[window].span
    assert COARSE[window].cell % FINE[window].cell == 0
    assert COARSE[window].span == FINE[window].span


def test_what_is_too_old_is_forgotten() -> None:
    now = [MIDNIGHT]
    found = read(MIDNIGHT, batch(counts(MIDNIGHT - 100, succeeded=1)), clock=lambda: now[0])
    assert rows(found, "queue") == {"mail": 1}

    now[0] += 7_200
    assert rows(found, "queue") == {}
    assert rows(found, "queue", Window.DAY) == {"mail": 1}
    now[0] += 31 * 86_400
    assert rows(found, "queue", Window.MONTH) == {}
    assert found.report(Window.MONTH, queue="mail") is None


def test_a_clock_that_is_ahead_counts_as_now_and_nonsense_not_at_all() -> None:
    nonsense: list[Any] = [
        {"kind": "counts", "at": "noon", "queue": "mail", "succeeded": 5},
        {"kind": "counts", "at": MIDNIGHT, "queue": 7, "job": None, "succeeded": "five", "failed": -2, "run": "x"},
        {"kind": "lost", "at": MIDNIGHT, "count": "many"},
        {"kind": "worker_up", "at": MIDNIGHT, "release": 7},
        {"kind": "something new", "at": MIDNIGHT},
    ]

    found = read(MIDNIGHT, batch(counts(MIDNIGHT + 999, succeeded=1), *nonsense))

    assert rows(found, "queue") == {"mail": 1}


def test_times_of_all_writers_are_merged_and_a_reset_forgets_all() -> None:
    found = read(
        MIDNIGHT,
        batch(counts(MIDNIGHT - 5, succeeded=99, run=[0.1] * 99), up(MIDNIGHT, "1")),
        batch(counts(MIDNIGHT - 4, succeeded=1, run=[8.0]), {"kind": "lost", "at": MIDNIGHT, "count": 3}, writer="b"),
    )

    before = found.report(Window.HOUR, job="shop.send")
    found.reset()
    after = found.report(Window.HOUR)

    assert before is not None
    assert after is not None
    run = before.total.row()["run"]
    assert (run["count"], run["min"], run["max"], run["mean"]) == (100, 0.1, 8.0, 0.179)
    assert run["p50"] == run["p99"] == pytest.approx(0.1, rel=0.2)
    assert (before.total.processed, before.lost, len(before.deploys)) == (100, 3, 1)
    assert (after.total.processed, after.lost, after.deploys, found.begins) == (0, 0, [], None)


def test_of_too_many_names_the_newest_are_kept_and_the_sums_stay() -> None:
    dimension = Dimension(most_cells=400)
    tally = Tally()
    tally.read({"succeeded": 1})

    for nth in range(1_000):
        dimension.add(f"queue {nth}", MIDNIGHT + nth, tally, MIDNIGHT + nth)

    found = dict(dimension.totals(Window.DAY, MIDNIGHT + 1_000))
    assert sum(each.processed for each in found.values()) == 1_000
    assert len(found) <= 101
    assert found["queue 999"].processed == 1
    assert found[None].processed > 850


def test_memory_is_bounded_however_much_is_read() -> None:
    found = read(MIDNIGHT, most_cells=200)
    for nth in range(5_000):
        found.take(batch(counts(MIDNIGHT - nth * 480, f"q{nth % 300}", f"j{nth % 70}", succeeded=1), writer=f"w{nth}"))

    report = found.report(Window.MONTH)

    assert report is not None
    assert report.total.processed == sum(MIDNIGHT - nth * 480 >= report.since for nth in range(5_000))
    assert all(dimension._count <= 200 for dimension in found._by.values())
    assert len(found._staged) <= 2_000


@pytest.mark.parametrize(
    ("ups", "marks"),
    [
        ([], []),
        ([(0, "")], []),
        ([(0, "1"), (5, "1")], ["1"]),
        ([(0, "1"), (5, "2"), (6, "2")], ["1", "2"]),
        ([(0, "1"), (5, "2"), (60, "1"), (65, "2")], ["1", "2"]),  # a late one of the release before
        ([(0, "1"), (5, "2"), (5_000, "1")], ["1", "2", "1"]),  # back to it
    ],
)
def test_a_deploy_is_the_first_worker_of_another_release(ups: list[tuple[float, str]], marks: list[str]) -> None:
    deploys = Deploys()
    for at, release in ups:
        deploys.up(at, release)

    assert [deploy.release for deploy in deploys.since(0)] == marks
