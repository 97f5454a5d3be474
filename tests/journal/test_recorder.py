"""The recorder: what is gathered is stored in batches, and nothing waits for it."""

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from palermo.client import recorder as recording
from palermo.client.recorder import MOST_WAITING, Recorder
from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.core.address import parse_url
from palermo.core.failure import Failure
from palermo.core.journal_records import JournalLevel, Record, RecordBatch, RecordKind
from palermo.core.lifecycle import Cancelled, Dropped, Interrupted, Raised, Result, Retrying, StoredResult, Succeeded
from palermo.core.message import Message
from palermo.errors import BrokerUnavailable
from palermo.worker.parent import job_events
from palermo.worker.parent.job_events import JobEvents
from tests.contract.tools import until
from tests.helpers import Stopwatch


class Tape:
    """A journal that can be away, on top of a real one."""

    def __init__(self, broker: Broker) -> None:
        self._journal = broker.journal
        self.away = False
        #: Stores, and says that it did not.
        self.deaf = False
        self.slow: asyncio.Event | None = None
        self.batches: list[RecordBatch] = []
        self.read = broker.journal.read

    async def append(self, batch: bytes) -> None:
        if self.slow is not None:
            await self.slow.wait()
        if self.away:
            raise BrokerUnavailable("the journal is away.")
        await self._journal.append(batch)
        if self.deaf:
            raise BrokerUnavailable("nobody answered.")

    def records(self, kind: str | None = None) -> list[Record]:
        return [one for batch in self.batches for one in batch.records if kind in (None, one["kind"])]

    async def until(self, count: int, kind: str | None = None) -> list[Record]:
        await until(lambda: len(self.records(kind)) >= count)
        return self.records(kind)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is away is tried again soon."""
    monkeypatch.setattr(recording, "_FIRST_PAUSE", 0.05)
    monkeypatch.setattr(recording, "_LAST_PAUSE", 0.1)


@asynccontextmanager
async def tape() -> AsyncIterator[Tape]:
    broker = await open_broker(
        SessionParameters(address=parse_url("sqlite:///:memory:"), exchange=f"test-{secrets.token_hex(6)}")
    )
    made = Tape(broker)
    await broker.journal.read(made.batches.append)
    try:
        yield made
    finally:
        await broker.close()


@asynccontextmanager
async def recording_at(level: JournalLevel, **options: Any) -> AsyncIterator[tuple[Tape, Recorder]]:
    async with tape() as journal:
        recorder = Recorder(level, "pid:1@h", **options)
        recorder.attach(journal)
        yield journal, recorder


def fields(id: str) -> Record:
    return {"id": id, "job": "a", "queue": "jobs"}


async def test_records_are_stored_together_and_in_order() -> None:
    async with recording_at(JournalLevel.ALL, now=lambda: 5.0004) as (journal, recorder):
        for number in range(700):
            recorder.add(RecordKind.SUCCEEDED, fields(f"{number}"))
        recorder.add(RecordKind.FAILED, fields("last"), at=3.0)

        found = await journal.until(701)

        assert [one["id"] for one in found] == [*map(str, range(700)), "last"]
        assert (found[0]["at"], found[-1]["at"]) == (5.0, 3.0)
        assert [len(batch.records) for batch in journal.batches] == [500, 201]
        assert [(batch.writer, batch.number) for batch in journal.batches] == [("pid:1@h", 1), ("pid:1@h", 2)]
        assert len({batch.source for batch in journal.batches}) == 1


async def test_what_the_level_leaves_out_is_counted_all_the_same() -> None:
    async with recording_at(JournalLevel.FAILURES) as (journal, recorder):
        recorder.add(RecordKind.SUCCEEDED, fields("1"))
        for took in (0.1, 0.3):
            recorder.count("succeeded", "jobs", "a", 0.5, took)
        recorder.count("failed", "jobs", "a", None, None)
        recorder.count("succeeded", "jobs", "b")

        a, b = await journal.until(2)

        assert {"queue": "jobs", "job": "a", "succeeded": 2, "failed": 1}.items() <= a.items()
        assert (sum(a["run"].values()), sum(a["wait"].values())) == (2, 2)
        assert (a["run_sum"], a["run_min"], a["run_max"], a["wait_sum"]) == (0.4, 0.1, 0.3, 1.0)
        assert b["succeeded"] == 1
        assert "run" not in b


async def test_counts_are_stored_now_and_then_and_records_do_not_hurry_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "COUNTS_SOON", 1_000.0)
    monkeypatch.setattr(recording, "COUNTS_EVERY", 1_000.0)
    async with recording_at(JournalLevel.FAILURES) as (journal, recorder):
        recorder.count("succeeded", "jobs", "a")
        await journal.until(1, "counts")
        recorder.count("failed", "jobs", "a")
        recorder.add(RecordKind.FAILED, fields("1"))
        await journal.until(1, "failed")

        assert [one.get("succeeded") for one in journal.records("counts")] == [1]
        for _ in range(recording.COUNTS - 1):
            recorder.count("failed", "jobs", "a")
        await journal.until(2, "counts")
        recorder.count("succeeded", "jobs", "b")
        await recorder.close(60)

        assert [one["failed"] for one in await journal.until(3, "counts") if "failed" in one] == [recording.COUNTS]
        assert journal.records("counts")[-1]["job"] == "b"


async def test_counts_that_go_on_are_stored_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "COUNTS_SOON", 0.05)
    monkeypatch.setattr(recording, "COUNTS_EVERY", 0.4)
    monkeypatch.setattr(recording, "FLUSH_EVERY", 0.01)
    async with recording_at(JournalLevel.FAILURES) as (journal, recorder):
        for number in range(6):
            recorder.count("succeeded", "jobs", "a")
            await journal.until(number + 1, "counts")
        stored = [one["at"] for one in journal.records("counts")]
        gaps = [later - sooner for sooner, later in itertools.pairwise(stored)]

        pause = 0.05
        for gap in gaps:
            assert gap >= pause - 0.01, gaps
            # A machine that stands still gives them a rest, after which it begins anew.
            pause = 0.05 if gap > 0.79 else min(0.4, 2 * pause)
        assert all(one["succeeded"] == 1 for one in journal.records("counts"))


async def test_a_short_run_leaves_no_record_of_its_beginning_and_a_long_one_does() -> None:
    async with recording_at(JournalLevel.ALL) as (journal, recorder):
        started = {"kind": RecordKind.STARTED, "at": 1.0}
        recorder.tentative[1] = lambda: started | fields("short")
        recorder.remind()
        del recorder.tentative[1]
        recorder.add(RecordKind.SUCCEEDED, fields("short"))
        recorder.tentative[1] = lambda: started | fields("long")
        recorder.remind()

        found = await journal.until(2)

        assert [(one["kind"], one["id"]) for one in found] == [("succeeded", "short"), ("started", "long")]


async def test_a_journal_that_is_away_is_said_once_and_loses_no_count(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with recording_at(JournalLevel.ALL) as (journal, recorder):
        journal.away = True
        for number in range(MOST_WAITING + 1_000):
            recorder.add(RecordKind.SUCCEEDED, fields(f"{number}"))
            recorder.count("succeeded", "jobs", "a", 0.1, 0.1)
            if number % 1_000 == 0:
                await asyncio.sleep(0.02)
        journal.away = False

        (lost,) = await journal.until(1, "lost")

        async def kept() -> tuple[int, int]:
            counted = sum(one["succeeded"] for one in journal.records("counts"))
            return counted, len(journal.records("succeeded")) + lost["count"]

        await until(kept, (MOST_WAITING + 1_000, MOST_WAITING + 1_000))
        assert [record.message.split(" error")[0].split(" dropped")[0] for record in caplog.records] == [
            "cannot write the journal, continuing without it",
            "journal can be written again",
        ]


async def test_a_batch_that_may_be_stored_is_stored_again_as_the_same() -> None:
    async with recording_at(JournalLevel.ALL) as (journal, recorder):
        journal.deaf = True
        recorder.add(RecordKind.FAILED, fields("1"))
        await journal.until(1)
        journal.deaf = False

        await journal.until(2)

        first, *again = journal.batches
        assert {(one.source, one.number) for one in again} == {(first.source, first.number)}


async def test_a_promise_is_kept_without_delay_or_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "FLUSH_EVERY", 1_000.0)
    async with tape() as journal:
        recorder = Recorder(JournalLevel.FAILURES, "pid:1@h")
        with pytest.raises(BrokerUnavailable, match=r"did not confirm the record within 0\.05 s"):
            await recorder.add_confirmed(RecordKind.SUCCEEDED, fields("too late"), timeout=0.05)

        recorder.attach(journal)
        await asyncio.gather(
            *(recorder.add_confirmed(RecordKind.SUCCEEDED, fields(f"{number}"), timeout=60) for number in range(30))
        )

        assert len(await journal.until(31)) == 31
        assert len(journal.batches) < 10

    async with recording_at(JournalLevel.OFF) as (journal, recorder):
        recorder.add(RecordKind.FAILED, fields("1"))
        recorder.count("failed", "jobs", "a")
        await recorder.add_confirmed(RecordKind.SUCCEEDED, fields("2"), timeout=60)
        assert [one["id"] for one in await journal.until(1)] == ["2"]


async def test_the_last_flush_waits_so_long_and_no_longer() -> None:
    async with recording_at(JournalLevel.ALL) as (journal, recorder):
        recorder.add(RecordKind.FAILED, fields("1"))
        await recorder.close(60)
        assert len(await journal.until(1)) == 1

        stuck = Recorder(JournalLevel.ALL, "pid:1@h")
        stuck.attach(journal)
        journal.slow = asyncio.Event()
        stuck.add(RecordKind.FAILED, fields("2"))
        async with asyncio.timeout(60):
            await stuck.close(0.05)


async def test_without_a_session_it_waits_for_the_next_one() -> None:
    async with tape() as journal:
        recorder = Recorder(JournalLevel.ALL, "pid:1@h")
        recorder.add(RecordKind.FAILED, fields("1"))
        recorder.attach(journal)
        await journal.until(1)
        recorder.detach()
        recorder.add(RecordKind.FAILED, fields("2"))
        recorder.attach(journal)

        assert [one["id"] for one in await journal.until(2)] == ["1", "2"]


# -- ends of jobs that keep their results


FAILURE = Failure(exception_class="ValueError", message="no", stack_trace="", failed_at=1)
KEPT = Succeeded(value=StoredResult("application/json", b"3"))


def message(**more: Any) -> Message:
    return Message(**{"id": "1", "queue": "jobs", "job": "a", "created_at": 7, **more})


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


async def test_a_success_after_a_failure_is_recorded_unless_nothing_is() -> None:
    async with tape() as journal:
        for level, job in ((JournalLevel.OFF, "off"), (JournalLevel.FAILURES, "failures")):
            made = events_to(journal, level)
            for retries in (None, 1):
                await keep(made, Succeeded(), id=f"{job}-{retries}", retries=retries)
            await made.recorder.flush(60)
        await journal.until(2)

        assert [one.get("id") for one in journal.records() if one["kind"] != "counts"] == ["failures-1"]


async def test_only_an_end_is_stored_where_it_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
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
            'result not kept, because the "journal" setting is "off" id=1 job=a'
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
        assert "end of a job not stored, its result may be lost id=1 job=a" in caplog.text

        journal.away = False
        await journal.until(3, "succeeded")
        await until(lambda: made.recorder.is_failing, False)
