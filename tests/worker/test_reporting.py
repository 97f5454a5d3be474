"""A job's reports on their way out of the slot: at most so often, the last in any case, never in the job's way."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from palermo import track
from palermo.jobs import current
from palermo.jobs.current import CurrentJob
from palermo.worker.child.reporting import EVERY, Reporter, ReportSender
from palermo.worker.ipc.frames import MAX_LINE, MAX_LINES, NO_MORE, Report, Reported, pack_answer, unpack_answer
from tests.helpers import eventually


class Parent:
    """Takes reports as a worker does."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.times: list[float] = []
        self.slots: list[int] = []

    def __call__(self, slot: int, report: Report) -> None:
        sent = Reported(slot, report)
        assert unpack_answer(pack_answer(sent)[4:]) == sent
        self.reports.append(report)
        self.times.append(time.monotonic())
        self.slots.append(slot)

    @property
    def lines(self) -> list[str]:
        return [line for report in self.reports for line in report.lines]


@pytest.fixture
def parent() -> Parent:
    return Parent()


def begun(sender: ReportSender, slot: int = 1) -> tuple[Reporter, CurrentJob]:
    """A run, and the job as it knows itself."""
    reporter = Reporter(sender, slot)
    return reporter, CurrentJob(id="1", queue="q", job="j", attempt=1, worker="w", _reports=reporter)


def test_a_tight_loop_tells_ten_times_a_second_and_its_last_word(parent: Parent) -> None:
    reporter, running = begun(ReportSender(parent))
    began = time.monotonic()
    done = 0
    while time.monotonic() - began < 0.55 or len(parent.reports) < 3 or done < 1_000:
        done += 1
        running.progress(done / 10_000_000, f"{done}")

    reporter.end()
    took = time.monotonic() - began

    assert parent.reports[-1] == Report(done / 10_000_000, f"{done}", moved=True)
    assert len(parent.reports) <= took / EVERY + 2


def test_the_end_waits_for_nothing(parent: Parent) -> None:
    sender = ReportSender(parent)

    def end() -> float:
        reporter, running = begun(sender)
        running.progress(0.1)
        eventually(lambda: parent.reports and parent.reports[-1].fraction == 0.1)
        running.progress(0.2)
        began = time.monotonic()
        reporter.end()
        return time.monotonic() - began

    # The quickest of them, on a machine that may stand still in one.
    assert min(end() for _ in range(5)) < EVERY / 2
    assert [report.fraction for report in parent.reports] == [0.1, 0.2] * 5


def test_what_was_held_back_goes_out_though_the_job_says_nothing_more(parent: Parent) -> None:
    gaps = []
    for count in (2, 4, 6):
        _, running = begun(ReportSender(parent))
        running.progress(0.1)
        eventually(lambda count=count: len(parent.reports) == count - 1)  # type: ignore[misc]
        running.progress(0.2, "now it computes for an hour")
        eventually(lambda count=count: len(parent.reports) == count)  # type: ignore[misc]
        assert parent.reports[-1].text == "now it computes for an hour"
        gaps.append(parent.times[-1] - parent.times[-2])

    # The longest of them: a first report that is late, on a machine that stands still, makes a gap short.
    assert max(gaps) >= EVERY * 0.9


def test_lines_come_in_their_order_cut_and_no_more_than_are_kept(parent: Parent) -> None:
    reporter, running = begun(ReportSender(parent), slot=3)

    running.log("one\ntwo")
    running.log("x" * 5_000)
    for number in range(MAX_LINES):
        running.log(number)
    reporter.end()

    assert parent.lines[:3] == ["one", "two", "x" * MAX_LINE]
    assert parent.lines[3:] == [*map(str, range(MAX_LINES - 3)), NO_MORE]
    assert set(parent.slots) == {3}


def test_nothing_comes_after_the_end_whoever_still_talks(parent: Parent) -> None:
    reporter, running = begun(ReportSender(parent))
    stop = threading.Event()

    def talk() -> None:
        while not stop.is_set():
            running.log("still here")

    threads = [threading.Thread(target=talk) for _ in range(4)]
    for thread in threads:
        thread.start()
    eventually(lambda: parent.reports)
    reporter.end()
    count = len(parent.reports)
    stop.set()
    for thread in threads:
        thread.join()
    reporter.end()

    assert len(parent.reports) == count


def test_a_process_that_the_job_forked_tells_nothing(parent: Parent, monkeypatch: pytest.MonkeyPatch) -> None:
    _, running = begun(ReportSender(parent))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    running.progress(0.5)
    monkeypatch.undo()
    running.progress(0.6)

    eventually(lambda: parent.reports)
    assert [report.fraction for report in parent.reports] == [0.6]


@pytest.mark.parametrize(("fraction", "shown"), [(0.25, 0.25), (1.000001, 1.0), (-3, 0.0), (None, None)])
def test_a_fraction_is_a_part_of_one(parent: Parent, fraction: float | None, shown: float | None) -> None:
    reporter, running = begun(ReportSender(parent))

    running.progress(fraction, "so far")
    reporter.end()

    assert parent.reports == [Report(shown, "so far", moved=True)]
    for wrong in ("0.5", True, float("nan"), [1]):
        with pytest.raises(TypeError, match="give a number from 0 to 1"):
            running.progress(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("track_it", "fractions", "texts"),
    [
        (lambda: track("abcd"), (0.0, 0.25, 0.5, 0.75, 1.0), "4 of 4"),
        (lambda: track(iter("abcd"), total=4, text="page"), (0.0, 0.25, 0.5, 0.75, 1.0), "page 4 of 4"),
        (lambda: track(iter("abcd")), (None, None, None, None, 1.0), "4 of 4"),
        (lambda: track(""), (1.0,), "0 of 0"),
        (lambda: track(iter("abcd"), total=2), (0.0, 0.5, 1.0, 1.0, 1.0), "4 of 2"),
    ],
)
def test_tracking_shows_how_many_are_done(
    track_it: Callable[[], Any], fractions: tuple[float | None, ...], texts: str
) -> None:
    told: list[tuple[float | None, str]] = []

    class All:
        def progress(self, fraction: float | None, text: str) -> None:
            told.append((fraction, text))

        def line(self, text: str) -> None: ...

    running = CurrentJob(id="1", queue="q", job="j", attempt=1, worker="w", _reports=All())
    token = current._current.set(running)
    try:
        items = list(track_it())
    finally:
        current._current.reset(token)

    assert items == list(track_it()) == list("abcd")[: len(items)]  # outside of a job too
    assert tuple(fraction for fraction, _ in told) == fractions
    assert told[-1][1] == texts
