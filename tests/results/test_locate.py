"""`locate`: where a job is, on each broker."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from palermo.client import status
from palermo.client.status import JobLocation, locate, locate_waiting
from palermo.contract.broker import Broker, Page, SessionParameters, open_broker
from palermo.core.lifecycle import JobState
from palermo.core.topology import QUORUM
from palermo.settings.settings import Settings
from tests.contract.tools import PATIENT, consume, ids, message, messages, put_into_failed, take, take_and_ack, until
from tests.harness.rig import Rig
from tests.helpers import eventually


@pytest.fixture
def quorum(rabbitmq_url: str, exchange: str) -> SessionParameters:
    return Settings(url=rabbitmq_url, exchange=exchange, queue_type=QUORUM, publish_timeout=PATIENT).session("test")


@asynccontextmanager
async def opened(session: SessionParameters) -> AsyncIterator[Broker]:
    broker = await open_broker(session)
    try:
        yield broker
    finally:
        await broker.close()


async def begun(broker: Broker, id: str) -> None:
    """Wait until the worker that took this job shows it: on SQLite workers report a moment later."""

    async def state() -> str:
        return (await locate(broker, id, "jobs")).state

    await until(state, "working")


async def states(broker: Broker, *ids: str, queue: str = "jobs") -> list[str]:
    return [(await locate(broker, id, queue)).state for id in ids]


async def test_a_job_is_located_wherever_it_is(any_session: SessionParameters) -> None:
    async with opened(any_session) as broker, opened(any_session) as working:
        await put_into_failed(broker, [message("failed")])
        await broker.publish(message("working"))
        consumer = await consume(working)
        await take(consumer)
        await begun(broker, "working")
        await broker.publish_many([message("waits"), message("cancelled")])
        await broker.publish(message("later", run_at=time.time() + 3_600))
        await broker.cancel(["cancelled"])

        where = ("later", "waits", "cancelled", "working", "failed", "nobody")
        assert await states(broker, *where) == ["scheduled", "pending", "cancelled", "working", "failed", ""]
        assert await states(broker, "waits", "cancelled", "nobody", queue="") == ["pending", "cancelled", ""]
        assert (await locate(broker, "nobody")).gone
        assert (await locate(broker, "failed", "jobs", failed=False)).gone
        assert (await locate(broker, "working")).worker == "pid:4711@example"


def test_the_job_of_a_silent_worker_is_located_by_its_last_answer(
    rabbitmq_url: str, exchange: str, tmp_path: Path
) -> None:
    with Rig(tmp_path, url=rabbitmq_url, exchange=exchange) as rig:
        worker = rig.worker()
        id = rig.hold()

        def where() -> JobLocation:
            return rig.client.run(lambda broker: locate(broker, id, "jobs"))

        eventually(lambda: where().state == JobState.WORKING)
        worker.send(signal.SIGSTOP)

        silent = where()

        assert (silent.state, silent.silent, silent.gone) == (JobState.WORKING, True, False)
        worker.send(signal.SIGCONT)
        eventually(lambda: where().state == JobState.WORKING)
        rig.open_gate()
        eventually(lambda: where().gone)


async def test_places_that_are_not_looked_at_are_named(
    session: SessionParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "DEPTH", 2)
    monkeypatch.setattr(status, "QUEUES", 1)
    async with opened(session) as broker:
        await broker.publish_many([*messages(5), *messages(6, "other")])

        assert await states(broker, "jobs-0", "jobs-1", "jobs-2", "jobs-4") == ["pending", "pending", "", "pending"]
        middle, elsewhere = await locate(broker, "jobs-2", "jobs"), await locate(broker, "other-0")
        assert (middle.gone, middle.unseen) == (False, ("the middle of queue 'jobs', where 1 job waits",))
        assert (elsewhere.gone, "the 1 longest queues" in elsewhere.unseen) == (False, True)


async def test_looking_at_the_end_of_a_long_queue_is_given_up_in_time(
    any_session: SessionParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "DEPTH", 2)
    monkeypatch.setattr(status, "_LONG", 5)
    async with opened(any_session) as broker:
        await broker.publish_many(messages(6))
        assert await states(broker, "jobs-0", "jobs-5") == ["pending", "pending"]

        browse = broker.browse

        async def browse_for_ever(name: str, *, newest: bool = False, **more: Any) -> Page:
            page = await browse(name, newest=newest, **more)
            if newest:  # a broker that is quick has answered by now
                await asyncio.Event().wait()
            return page

        monkeypatch.setattr(status, "_LOOK_WITHIN", 0)
        monkeypatch.setattr(broker, "browse", browse_for_ever)

        assert await states(broker, "jobs-0", "jobs-5") == ["pending", ""]
        found = await locate(broker, "jobs-5", "jobs")
        assert found.unseen == ("queue 'jobs' behind its first 2 jobs, where 4 wait",)
        # The jobs that were being read are in their queue again.
        await until(lambda: ids(broker), [f"jobs-{number}" for number in range(6)])


async def test_a_job_that_waits_in_another_queue_than_its_own_is_located(
    session: SessionParameters,
) -> None:
    async with opened(session) as broker:
        await broker.publish_many([message("first"), message("moved", "other")])
        consumer = await consume(broker)
        await take_and_ack(consumer)

        async def found() -> list[str]:
            return await states(broker, "moved")

        await until(found, ["pending"])
        assert await locate_waiting(broker, "moved", "jobs") is None
        there = await locate_waiting(broker, "moved", "no-such-queue")
        assert there is not None
        assert there.message is not None
        assert there.message.queue == "other"


async def test_a_failed_job_behind_many_is_located_through_their_log(
    quorum: SessionParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "FAILED", 2)
    async with opened(quorum) as broker:
        await put_into_failed(broker, messages(5))

        assert await states(broker, "jobs-4") == ["failed"]
