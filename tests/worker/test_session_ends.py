"""The last runs of a worker are in the history and the statistics, however its session with the broker ended."""

import asyncio
from pathlib import Path

import pytest

from palermo.client.recorder import Recorder
from palermo.contract.broker import Broker, Consumer
from palermo.core.journal_records import JournalLevel, RecordKind
from palermo.core.queue_selection import QueueSelection
from palermo.errors import BrokerUnavailable
from palermo.settings.settings import Settings
from palermo.worker.parent.broker_session import BrokerSession, BrokerSessions
from palermo.worker.parent.job_events import JobEvents
from tests.contract.workers import Report
from tests.harness.rig import Rig
from tests.helpers import HANGS, eventually
from tests.tcp_proxy import TcpProxy


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
