"""Jobs that one session looks at are not hidden from another that reads failed jobs, or that ends a burst."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp.connection import Connection, open_connection
from palermo.brokers.rabbitmq.amqp.messages import Properties
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.browsing.sweep import FailedTurn, Reader, sweep, waits
from palermo.client.failed_queues import browse_failed
from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.contract.sweep import Keep, Move, Remove, SweepDecision
from palermo.core.address import parse_url
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection
from palermo.core.topology import FAILED_QUEUE, QUORUM, internal
from palermo.worker.parent.watchdog import is_drained
from tests.contract.tools import PATIENT, messages, put_into_failed
from tests.rabbitmq_node import Node, binary, url_of


@asynccontextmanager
async def thirty_failed(session: SessionParameters) -> AsyncIterator[tuple[Broker, Connection]]:
    broker = await open_broker(session)
    connection = await open_connection(session, "looks")
    try:
        await put_into_failed(broker, messages(30))
        yield broker, connection
    finally:
        await connection.close()
        await broker.close()


async def held(connection: Connection, exchange: str, count: int, queue: str = FAILED_QUEUE) -> Reader:
    """A session that looks at the next jobs of the queue, and holds them."""
    reader = Reader(connection, exchange, queue, only_look=True)
    _, page = await anext(reader.pages(count, first=count))
    assert len(page) == count
    return reader


async def test_a_queue_whose_jobs_are_looked_at_is_not_drained(session: SessionParameters) -> None:
    """`palermo worker --burst` ended with 3,000 jobs waiting while somebody looked at their queue."""

    broker, connection = await open_broker(session), await open_connection(session, "looks")
    try:
        await broker.publish_many(messages(30))
        look = await held(connection, session.exchange, 30, "jobs")
        drained = asyncio.ensure_future(is_drained(broker, QueueSelection.parse("jobs"), ()))
        # A worker that does not wait for the look finds nothing at once.
        await asyncio.wait([drained], timeout=0.5)
        await look.close()

        assert not await drained
    finally:
        await connection.close()
        await broker.close()


async def test_jobs_that_are_looked_at_as_a_sweep_begins_are_swept(session: SessionParameters) -> None:
    async with thirty_failed(session) as (broker, connection):
        look = await held(connection, session.exchange, 30)
        counted = asyncio.Event()
        removing = asyncio.ensure_future(
            broker.sweep(FAILED_QUEUE, lambda _: Remove(), progress=lambda _: counted.set())
        )
        # A sweep that does not wait for the look counts none at once.
        await asyncio.wait([asyncio.ensure_future(counted.wait())], timeout=0.5)
        await look.close()

        assert (await removing).removed == 30


async def test_jobs_that_are_looked_at_during_a_sweep_are_swept(session: SessionParameters) -> None:
    async with thirty_failed(session) as (_, connection):
        moved: list[str] = []
        looks: list[asyncio.Task[None]] = []

        async def look() -> None:
            reader = await held(connection, session.exchange, 10)
            looking.set()
            await asyncio.sleep(0.3)
            await reader.close()

        async def publish(jobs: list[Message]) -> None:
            if not looks:
                # The sweep has read its first page, of 20.
                looks.append(asyncio.create_task(look()))
                await looking.wait()
            moved.extend(job.id for job in jobs)

        def decide(job: Message) -> SweepDecision:
            return Move(job)

        looking = asyncio.Event()
        sweeping = await open_connection(session, "sweeps")
        reader = Reader(sweeping, session.exchange, FAILED_QUEUE)
        swept = await sweep(reader, FAILED_QUEUE, decide, publish, lambda _: None)
        await sweeping.close()

        assert swept.moved == 30
        assert sorted(moved) == sorted(f"jobs-{number}" for number in range(30))


@pytest.mark.parametrize("count", [10, 30])
async def test_who_looks_at_failed_jobs_sees_those_too_that_another_session_looks_at(
    session: SessionParameters, count: int
) -> None:
    async with thirty_failed(session) as (broker, connection):
        look = await held(connection, session.exchange, count)
        browsing = asyncio.ensure_future(browse_failed(broker, offset=0, limit=100, newest=False))
        # A page that does not wait for the look has come by then.
        await asyncio.wait([browsing], timeout=0.5)
        await look.close()

        page = await browsing
        assert [job.id for job in page.messages] == [f"jobs-{number}" for number in range(30)]
        assert page.total == 30


@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_two_who_take_failed_jobs_at_once_and_one_who_looks_each_meet_all_of_them(
    session: SessionParameters, kind: str
) -> None:
    parameters = replace(session, queue_type=kind)
    first, second, looks = [await open_broker(parameters) for _ in range(3)]
    try:
        await put_into_failed(first, messages(300))

        async def every_third(broker: Broker, number: int) -> int:
            def decide(job: Message) -> SweepDecision:
                return Remove() if int(job.id.rpartition("-")[2]) % 3 == number else Keep()

            return (await broker.sweep(FAILED_QUEUE, decide)).removed

        taking = [asyncio.ensure_future(every_third(broker, number)) for number, broker in enumerate((first, second))]
        totals = set()
        while not all(task.done() for task in taking):
            totals.add((await looks.browse(FAILED_QUEUE, limit=10)).total)

        assert [task.result() for task in taking] == [100, 100]
        # Of a quorum queue a look reads the log, which is written a moment later.
        assert kind == QUORUM or totals <= {300, 200, 100}
    finally:
        for broker in (first, second, looks):
            await broker.close()


def test_who_asks_whether_failed_jobs_may_be_looked_at_does_not_wait_for_who_requeues_them(
    session: SessionParameters, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with thirty_failed(session) as (broker, connection):
            async with FailedTurn(session.exchange).held(connection, only_look=False):
                page = await broker.browse(FAILED_QUEUE, limit=0)

            assert (page.messages, page.total) == ((), 30)

    asyncio.run(work())
    assert "failed jobs that another session holds may be left out" not in caplog.text


def test_who_takes_failed_jobs_waits_for_no_program_that_consumes_them_for_ever(
    session: SessionParameters, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("palermo.brokers.rabbitmq.browsing.sweep._OTHERS", 0.2)

    async def work() -> None:
        async with thirty_failed(session) as (broker, connection):
            look = await held(connection, session.exchange, 10)

            assert (await broker.sweep(FAILED_QUEUE, lambda _: Remove())).removed == 20
            await look.close()

    asyncio.run(work())
    assert "failed jobs that another session holds are left out queue=failed" in caplog.text


def test_a_quorum_queue_that_is_slow_to_answer_is_not_taken_for_empty(shared_node: Node, exchange: str) -> None:
    session = SessionParameters(address=parse_url(url_of(shared_node)), exchange=exchange, timeout=PATIENT)
    queue = internal(exchange, "slow")
    member = f"{{binary_to_atom({binary('%2F_' + queue)}), node()}}"

    async def work() -> int:
        connection = await open_connection(session, "test")
        try:
            await connection.declare(queue, {"x-queue-type": "quorum"})
            publisher = await Publisher.open(connection)
            for _ in range(3):
                await publisher.send("", queue, Properties(), b"1")
            channel = await connection.channel()
            await channel.prefetch(1)
            await channel.consume(queue, lambda _: None)
            shared_node.evaluate(f"sys:suspend({member})")
            asyncio.get_running_loop().call_later(1.0, shared_node.evaluate, f"sys:resume({member})")
            return await waits(channel, queue)
        finally:
            await connection.close()

    assert asyncio.run(work()) == 2
