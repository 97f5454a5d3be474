"""Workers whose broker goes away, refuses, or cannot be used, and what their last runs leave behind then."""

import asyncio
import signal
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest

from palermo.client.recorder import Recorder
from palermo.contract.broker import Broker, Consumer
from palermo.core.journal_records import JournalLevel, RecordKind
from palermo.core.queue_selection import QueueSelection
from palermo.errors import BrokerUnavailable
from palermo.settings.settings import Settings
from palermo.worker.parent import broker_session
from palermo.worker.parent.broker_session import BrokerSession, BrokerSessions
from palermo.worker.parent.job_events import JobEvents
from tests.contract.workers import Report
from tests.harness.rig import Rig
from tests.helpers import HANGS, eventually, has_traceback
from tests.tcp_proxy import TcpProxy


def _write(rig: Rig, *statements: str) -> None:
    """All of it in one transaction."""
    with sqlite3.connect(rig.path / "jobs.db", timeout=10) as db:
        for statement in statements:
            db.execute(statement)
    db.close()


def test_the_result_of_a_job_that_a_lost_session_gave_back_is_dropped(rig: Rig) -> None:
    worker, id = rig.holding("-c", "2")

    _write(rig, "update job set holder = null", "delete from holder")

    eventually(lambda: "connection lost" in worker.log)
    eventually(lambda: worker.log.count("INFO connected") == 2)
    eventually(lambda: len(rig.lines()) == 2)
    rig.open_gate()
    eventually(lambda: rig.lines().count("held ends") == 2)
    eventually(lambda: f"WARNING result dropped, because the broker has requeued the job id={id}" in worker.log)
    rig.ready(worker)
    assert rig.errors() == {}
    assert rig.pending() == 0
    # Both slots take jobs again.
    for text in ("third", "fourth"):
        rig.enqueue("hold", str(rig.notes_path), str(rig.path / "other gate"), text)
    eventually(lambda: {"third begins", "fourth begins"} <= set(rig.lines()))


@pytest.mark.slow
@pytest.mark.parametrize(("keep_result", "raises"), [(False, False), (True, False), (False, True)])
def test_a_job_that_runs_through_a_lost_session_ends_once(rig: Rig, keep_result: bool, raises: bool) -> None:
    worker = rig.idle("-c", "1", modules=("crew", "crew_poison"))
    job = "crew_poison.raises_late" if raises else "hold"
    id = rig.enqueue(job, str(rig.notes_path), str(rig.gate), keep_result=keep_result)
    begun = ["raising"] if raises else ["held begins"]
    eventually(lambda: rig.lines() == begun)
    # The worker's heartbeat meets the trigger and ends the session; the job goes on.
    _write(rig, "create trigger refuse before update on holder begin select raise(abort, 'no'); end")
    eventually(lambda: [row["answers"] for row in rig.workers()] == [False])
    _write(rig, "drop trigger refuse")

    rig.open_gate()

    eventually(lambda: "connection lost" in worker.log)
    eventually(lambda: "job settled with the result of another worker" in worker.log)
    state = "failed" if raises else "done"
    eventually(lambda: [row["state"] for row in rig.inspector.history.list().rows if row["id"] == id] == [state])
    *_, end = rig.inspector.history.timeline(id)
    assert (end["kind"], end["worker"]) == ("failed" if raises else "succeeded", f"{rig.only_worker()['id']}/worker-1")
    assert end["took"] > 0
    assert rig.client.job_by_id(id).status().state == state
    rig.ready(worker)
    assert rig.lines() == begun + ([] if raises else ["held ends"])
    assert (rig.pending(), list(rig.errors()), has_traceback(worker.log)) == (0, [id] * raises, False)


def test_a_failed_job_that_cannot_be_stored_waits_in_the_worker(rig: Rig) -> None:
    id = rig.enqueue("raises", "x")
    _write(rig, "create trigger refuse before insert on job begin select raise(abort, 'no'); end")

    worker = rig.worker("--log-level", "debug")
    eventually(lambda: "queue refuses jobs or results" in worker.log)
    _write(rig, "drop trigger refuse")

    eventually(lambda: list(rig.errors()) == [id])
    assert worker.alive
    assert worker.log.count("job started") == 1


def test_a_worker_that_stops_gives_back_a_failed_job_that_cannot_be_stored(rig: Rig) -> None:
    rig.enqueue("raises", "x")
    _write(rig, "create trigger refuse before insert on job begin select raise(abort, 'no'); end")
    worker = rig.worker()
    eventually(lambda: "queue refuses jobs or results" in worker.log)

    worker.send(signal.SIGTERM)

    assert worker.wait() == 0
    assert "result not stored, requeuing the job" in worker.log
    assert (rig.errors(), rig.pending()) == ({}, 1)


@pytest.mark.slow
def test_a_retry_that_cannot_be_stored_runs_again_without_being_counted(rig: Rig) -> None:
    id = rig.enqueue("fails", str(rig.notes_path), "it", module="crew_retries")
    _write(rig, "create trigger refuse before insert on job begin select raise(abort, 'no'); end")

    rig.worker(modules=("crew_retries",))
    eventually(lambda: rig.lines().count("it 1") >= 2)
    _write(rig, "drop trigger refuse")

    eventually(lambda: list(rig.errors()) == [id])
    assert [line for line in rig.lines() if line != "it 1"] == ["it 2", "it 3", "it 4", "it exhausted by it in try 4"]


async def nothing(broker: Broker) -> None:
    """There is nothing to do before a session ends."""


def test_a_burst_gives_up_after_30_seconds_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def no_consumer(broker: Broker) -> Consumer:
        raise AssertionError

    session = Settings(url="amqp://guest:guest@127.0.0.1:1/").session("worker")
    sessions = BrokerSessions(
        session, give_up=True, consume=no_consumer, opened=lambda _: None, lost=lambda: None, ending=nothing
    )
    monkeypatch.setattr(broker_session, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(broker_session, "time", SimpleNamespace(monotonic=lambda: sum(waits)))

    asyncio.run(sessions.keep_open())

    assert sum(waits) == pytest.approx(30)


def test_a_worker_told_to_end_while_its_session_is_lost_opens_no_other(rig: Rig) -> None:
    async def told() -> bool:
        loop = asyncio.get_running_loop()
        calls: asyncio.Future[list[asyncio.Future[None]]] = loop.create_future()

        async def consume(broker: Broker) -> Consumer:
            calls.set_result([loop.create_future(), loop.create_future()])
            await asyncio.gather(*calls.result())
            raise AssertionError

        sessions = BrokerSessions(
            rig.settings.session("worker"),
            give_up=False,
            consume=consume,
            opened=lambda _: None,
            lost=lambda: None,
            ending=nothing,
        )
        task = asyncio.ensure_future(sessions.keep_open())
        first, _ = await calls
        # Both in one turn of the loop, as when a worker that was stopped (SIGSTOP) goes on.
        first.set_exception(BrokerUnavailable("lost"))
        task.cancel()
        await asyncio.wait({task}, timeout=HANGS)
        return task.cancelled()

    assert asyncio.run(told())


def test_slots_that_cannot_be_forked_are_tried_again(rig: Rig) -> None:
    rig.enqueue("note", str(rig.notes_path), "ran")

    log = rig.burst(modules=("crew", "crew_unforkable"))

    assert log.count("cannot start slot slot=1 error='could not be forked: [Errno 11]") == 2
    assert rig.lines() == ["ran"]


def test_a_worker_runs_without_uvloop(rig: Rig) -> None:
    (rig.path / "uvloop.py").write_text("raise ImportError")
    rig.enqueue("note", str(rig.notes_path), "ran")
    crash = rig.enqueue("segfaults")
    worker = rig.worker()

    eventually(lambda: rig.lines() == ["ran"] and list(rig.errors()) == [crash])
    rig.ready(worker)
    worker.send(signal.SIGTERM)

    assert worker.wait() == 0


def test_a_job_that_ran_just_before_its_session_was_given_up_is_counted(tmp_path: Path) -> None:
    recorder = Recorder(JournalLevel.FAILURES, "w")
    events = JobEvents(recorder)
    ended = asyncio.Event()

    async def consume(broker: Broker) -> Consumer:
        return await broker.consume(QueueSelection.parse("jobs"), slots=1, tag="pid:1@h", report=Report("jobs", pid=1))

    def opened(session: BrokerSession) -> None:
        recorder.attach(session.broker.journal)

    async def ending(broker: Broker) -> None:
        await events.session_ends(broker)
        ended.set()

    async def run() -> int:
        session = Settings(url=f"sqlite:///{tmp_path}/jobs.db").session("worker")
        sessions = BrokerSessions(
            session, give_up=True, consume=consume, opened=opened, lost=lambda: None, ending=ending
        )
        keeping = asyncio.ensure_future(sessions.keep_open())
        async with asyncio.timeout(HANGS):
            await sessions.available.wait()
            recorder.count(RecordKind.SUCCEEDED, "jobs", "shop.note")
            first = sessions.current
            assert first is not None
            sessions.lose(first, BrokerUnavailable("a queue is in trouble"))
            await ended.wait()
            unwritten = recorder.unwritten
            await sessions.available.wait()
            # What is told of the first session later does not end the second one.
            second = sessions.current
            sessions.lose(first, BrokerUnavailable("no answer"))
            assert sessions.current is second
        keeping.cancel()
        await asyncio.wait({keeping}, timeout=HANGS)
        return unwritten

    assert asyncio.run(run()) == 0


@pytest.mark.slow
def test_cuts_lose_no_record_and_a_worker_that_ends_without_says_so(rabbitmq_rig: Rig, proxy: TcpProxy) -> None:
    rig = rabbitmq_rig
    worker = rig.idle("-c", "2", PALERMO_URL=proxy.url(rig.url))
    for number in range(1, 7):
        rig.enqueue("note", f"{number}")
        rig.await_lines(number)
        proxy.hang_up(reset=bool(number % 2))
    rig.ready(worker)

    eventually(lambda: rig.rows("stats")["processed"] >= 6)
    rig.enqueue("hold", "held")
    rig.await_lines(7)
    proxy.refuse()
    proxy.hang_up()
    rig.open_gate()
    rig.await_lines(8)
    worker.stop()

    assert "journal unavailable when the worker ended, records lost=" in worker.log
