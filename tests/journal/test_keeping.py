"""A worker and the ends of jobs that keep their results: stored before the job is acknowledged, where they can be."""

import asyncio
import logging
import time
from typing import Any

import pytest

from palermo.client.recorder import Recorder
from palermo.core.failure import Failure
from palermo.core.journal_records import JournalLevel
from palermo.core.lifecycle import Cancelled, Dropped, Interrupted, Raised, Result, Retrying, StoredResult, Succeeded
from palermo.core.message import Message
from palermo.worker.parent import job_events
from palermo.worker.parent.job_events import JobEvents
from tests.helpers import Stopwatch
from tests.journal.test_recorder import Tape, quick, tape

__all__ = ["quick"]

FAILURE = Failure(exception_class="ValueError", message="no", stack_trace="", failed_at=1)
KEPT = Succeeded(value=StoredResult("application/json", b"3"))


def message(**more: Any) -> Message:
    return Message(id="1", queue="jobs", job="a", created_at=7, **more)


def events_to(journal: Tape, level: JournalLevel = JournalLevel.FAILURES) -> JobEvents:
    made = JobEvents(Recorder(level, "pid:1@h"))
    made.recorder.attach(journal)
    return made


async def keep(made: JobEvents, result: Result, **more: Any) -> bool:
    now = time.time()
    written = await made.store_result(2, message(**more), result, began_at=now - 1, ended_at=now)
    made.run_ended(2, message(**more), result, began_at=now - 1, ended_at=now, settled=True, written=written)
    return written


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (KEPT, "succeeded"),
        (Succeeded(refused="too large"), "succeeded"),
        (Succeeded(skipped=True), "succeeded"),
        (Raised(FAILURE), "failed"),
        (Dropped("gone"), "discarded"),
        (Cancelled(), "cancelled"),
    ],
)
async def test_every_end_of_such_a_job_is_stored_once_before_it_is_acknowledged(result: Result, kind: str) -> None:
    async with tape() as journal:
        made = events_to(journal)

        assert await keep(made, result, keep_result=True)
        await made.recorder.flush(60)
        await journal.until(2)

        (record,) = [one for one in journal.records() if one["kind"] != "counts"]
        assert {"kind": kind, "id": "1", "created": 7, "slot": 2, "attempt": 1}.items() <= record.items()
        assert record.get("result") == ({"content_type": "application/json", "text": "3"} if result == KEPT else None)


async def test_only_an_end_is_stored_where_it_is_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with tape() as journal:
        for result in (Retrying(FAILURE, 3.0), Retrying(None, 3.0), Interrupted()):
            assert not await keep(events_to(journal), result, keep_result=True)
        assert await keep(events_to(journal), KEPT)  # the job itself asked, the publisher did not
        assert not await keep(events_to(journal), Succeeded())
        assert not await keep(events_to(journal), Raised(FAILURE))

        made = events_to(journal, JournalLevel.OFF)
        assert not await keep(made, KEPT)
        assert not await keep(made, KEPT)
        assert [record.message for record in caplog.records] == [
            "results are not kept: the setting journal is off id=1 job=a"
        ]


async def test_an_absent_journal_delays_at_first(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_events, "STORE_TIMEOUT", 0.3)
    monkeypatch.setattr(job_events, "AWAY_TIMEOUT", 0.01)
    caplog.set_level(logging.ERROR)
    async with tape() as journal:
        made = events_to(journal)
        journal.away = True
        times, watch = [time.monotonic()], Stopwatch()
        for _ in range(3):
            assert await keep(made, KEPT)
            times.append(time.monotonic())

        assert times[1] - times[0] >= 0.3
        # One of the two, as the machine may stand still once.
        assert min(times[2] - times[1], times[3] - times[2]) < 0.3 + watch.stalled()
        assert "is not stored, and may get lost id=1 job=a" in caplog.text

        journal.away = False
        await journal.until(3, "succeeded")
        async with asyncio.timeout(60):
            while made.recorder.is_failing:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
