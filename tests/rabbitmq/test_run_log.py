"""The record of starts: who died of a job, who still runs it, and who only seems to."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq import RabbitmqBroker
from palermo.brokers.rabbitmq.amqp.stream import exists
from palermo.brokers.rabbitmq.consuming import run_log
from palermo.brokers.rabbitmq.consuming.consumer import RabbitmqConsumer
from palermo.brokers.rabbitmq.consuming.run_log import CrashHistory, key
from palermo.contract.broker import Delivery, SessionParameters
from palermo.contract.worker_info import RunningJob
from palermo.core.lifecycle import Ack, Release, Reschedule
from palermo.core.message import Message
from palermo.core.topology import internal
from tests.contract.tools import message, until
from tests.contract.workers import Report, consume, take
from tests.rabbitmq.conftest import Open

pytestmark = pytest.mark.usefixtures("patient")


class Worker:
    """A worker's session with the broker, which can be cut."""

    def __init__(self, broker: RabbitmqBroker, consumer: Any, report: Report, onlooker: RabbitmqBroker) -> None:
        self.broker = broker
        self.consumer = consumer
        self.report = report
        self.adapter: RabbitmqConsumer = consumer._consumer
        self._onlooker = onlooker

    async def take(self) -> Delivery:
        """A job, which runs here from then on as far as others can tell."""
        return await take(self.consumer)

    async def written(self, *ids: str) -> None:
        """Wait until the record of this worker says so."""

        async def read() -> set[str]:
            view = await self.adapter._run_log.view()
            found = view.seen.get(key(self.report.info.id, self.report.info.started_at))
            return set(found.runs) if found is not None else set()

        await until(read, set(ids))

    async def die_at_work(self) -> None:
        """Take a job, and die once it is written down."""
        await self.written((await self.take()).message.id)
        await self.die()

    async def die(self) -> None:
        """As the kernel ends a process: both connections go without a word."""
        for connection in (self.broker._connections.consuming, self.broker._connection):
            assert connection is not None
            connection.raw.abort()
            await connection.lost.wait()
        inbox = self.adapter._worker_control.inbox
        # RabbitMQ gives the job back before it deletes the queue by which the worker is asked.
        await until(lambda: exists(self._onlooker._connection, inbox), False)


Join = Callable[..., Awaitable[Worker]]


@pytest.fixture
def join(runner: asyncio.Runner, another: Open, broker: RabbitmqBroker) -> Join:
    """Starts workers, with one job in the queue."""
    runner.run(broker.publish(message("a")))

    async def join(pid: int, since: float = 1_000.5) -> Worker:
        session, report = await another(), Report("jobs", pid=pid)
        report.info = replace(report.info, started_at=since)
        return Worker(session, await consume(session, report=report), report, broker)

    return join


async def test_the_same_process_id_is_another_worker_once_it_was_started_again(join: Join) -> None:
    first = await join(1, since=1_000.5)
    await first.die_at_work()

    again = await join(1, since=2_000.5)

    assert (await again.take()).deaths == ("pid:1@example",)


async def test_a_worker_whose_connection_was_cut_is_dead_only_until_it_is_back(join: Join) -> None:
    first = await join(1)
    await first.die_at_work()
    second = await join(2)
    taken = await second.take()
    assert taken.deaths == ("pid:1@example",)

    back = await join(1)
    await back.written()
    await second.consumer.settle(taken, Release())

    assert (await second.take()).deaths == ()


async def test_a_job_given_back_while_its_start_is_written_counts_no_death(join: Join) -> None:
    worker = await join(1)
    delivery = await worker.take()
    worker.report.info = replace(worker.report.info, jobs=())
    starts = worker.adapter._run_log
    await starts._flushes.flush()  # what it wrote when it began
    writing = asyncio.ensure_future(starts.begin(1, "a", {}))
    for _ in range(3):
        await asyncio.sleep(0)
    assert ("a" in starts._written, writing.done()) == (True, False)  # the record is on its way

    await worker.consumer.settle(delivery, Release())
    await writing
    await worker.die()

    assert (await (await join(2)).take()).deaths == ()


async def test_a_job_that_ended_is_no_longer_held_to_what_it_did(join: Join) -> None:
    first = await join(1)
    await first.die_at_work()
    second = await join(2)
    taken = await second.take()
    assert taken.deaths == ("pid:1@example",)

    await second.consumer.settle(taken, Ack())

    async def known() -> list[Any]:
        view = await second.adapter._run_log.view()
        return [*view.seen, *view.blamed]

    await until(known, [])


async def test_jobs_run_when_the_record_cannot_be_kept(
    join: Join, session: SessionParameters, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # A queue of that name which is no stream: reading it by an offset is refused.
    monkeypatch.setattr(run_log, "STORED_WITHIN", 0.5)

    # A worker that began just now has nothing to put right, and writes nothing yet.
    worker = await join(1, since=time.time())
    connection = worker.broker._connection
    channel = await connection.channel()
    await channel.call(channel.raw.queue_declare, internal(session.exchange, "starts"), exclusive=True)
    delivery = await worker.take()
    await worker.consumer.settle(delivery, Release())

    again = await worker.take()

    assert (again.redelivered, again.deaths, again.running_at) == (True, (), "")
    assert "running" in caplog.text
    await worker.consumer.settle(again, Ack())


@pytest.mark.slow
async def test_what_a_job_saved_is_found_by_each_worker_after_a_death(join: Join) -> None:
    first = await join(1)
    delivery = await first.take()
    await first.consumer.save(delivery, "place")

    async def saved() -> str | None:
        return (await first.adapter._run_log.view()).saved(delivery.message)

    await until(saved, "place")
    await first.die()
    second = await join(2)
    assert (await second.take()).message.saved == "place"
    await second.die()  # without saving more

    third = await join(3)
    taken = await third.take()

    assert taken.message.saved == "place"
    assert len(taken.deaths) == 2


async def test_what_a_job_saves_after_a_slow_look_is_recorded(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    find = CrashHistory.of

    async def slow(*given: Any, **options: Any) -> Any:
        await asyncio.sleep(4 * run_log.TICK)
        return await find(*given, **options)

    monkeypatch.setattr(CrashHistory, "of", slow)
    await (await join(1)).die_at_work()
    second = await join(2)
    await second.consumer.save(delivery := await second.take(), "place")

    async def saved() -> str | None:
        return (await second.adapter._run_log.view()).saved(delivery.message)

    await until(saved, "place")


async def test_what_a_job_saved_at_once_is_kept_until_it_ends(join: Join) -> None:
    worker = await join(1)
    await worker.take()
    log, report = worker.adapter._run_log, worker.report
    young = RunningJob(id="young", job="j", queue="jobs", slot=2, started_at=time.time() + 60)
    report.info = replace(report.info, jobs=(*report.info.jobs, young))
    log.save(message("young"), "place")
    await log._flush()  # because of the other job

    report.info = replace(report.info, jobs=(*report.info.jobs[:-1], replace(young, started_at=1.0)))

    async def saved() -> str | None:
        return (await log.view()).saved(message("young"))

    await until(saved, "place")
    report.info = replace(report.info, jobs=())
    await until(lambda: not log._saved)


async def test_what_short_jobs_saved_is_not_kept(join: Join) -> None:
    worker = await join(1)
    await until(lambda: worker.adapter._run_log.ticking is None)

    worker.adapter._run_log.save(message("short"), "place")
    worker.adapter._run_log.watch()

    await until(lambda: not worker.adapter._run_log._saved)


async def test_a_worker_that_stops_with_a_saved_place_is_not_dead(join: Join) -> None:
    first = await join(1)
    delivery = await first.take()
    await first.consumer.save(delivery, "place")
    await first.written("a")
    await first.consumer.settle(delivery, Reschedule(replace(delivery.message, saved="place")))
    await first.die()
    second = await join(2)
    await second.die_at_work()

    assert (await (await join(3)).take()).deaths == ("pid:2@example",)


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (message("a", created_at=5), "newer"),
        (message("a", created_at=6), None),
        (message("a", created_at=5, retries=1), None),
        (message("b", created_at=5), None),
    ],
    ids=["the same run", "the id used again", "after a requeue", "another job"],
)
def test_what_was_saved_holds_for_one_run_of_one_message(message: Message, found: str | None) -> None:
    view = run_log.View()
    for since, text in ((1.0, "older"), (2.0, "newer")):
        record = {"worker": "w", "since": since, "inbox": "q", "runs": ["a"], "saved": {"a": [text, 1, 5]}}
        view.add(record)
    with pytest.raises(ValueError, match="int"):
        view.add({"worker": "odd", "since": 3.0, "inbox": "q", "runs": ["a"], "saved": {"a": ["text", "one", None]}})

    assert view.saved(message) == found


async def test_the_log_of_a_lost_session_writes_no_more(join: Join) -> None:
    worker = await join(1)
    log = worker.adapter._run_log

    await until(lambda: log.ticking is None)
    await worker.die()
    await worker.consumer.close()

    running = RunningJob(id="a", job="j", queue="jobs", slot=1, started_at=1.0)
    worker.report.info = replace(worker.report.info, jobs=(running,))
    log.watch()

    assert log.ticking is None
