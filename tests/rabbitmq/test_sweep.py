"""Jobs that one session looks at are not hidden from another that reads failed jobs, or that ends a burst."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.messages import Properties
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.browsing.sweep import FailedTurn, Reader, sweep, waits
from palermo.client.failed_queues import browse_failed
from palermo.contract.broker import Broker
from palermo.contract.sweep import Move, Remove
from palermo.core.address import parse_url
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection
from palermo.core.topology import FAILED_QUEUE, internal
from palermo.worker.parent.empty_queues import is_drained
from tests.contract.tools import messages, put_into_failed
from tests.rabbitmq.conftest import Open
from tests.rabbitmq_node import Node, binary, url_of

Act = Callable[[Broker], Coroutine[Any, Any, object]]


@pytest.fixture
def thirty_failed(runner: asyncio.Runner, broker: RabbitmqBroker) -> RabbitmqBroker:
    runner.run(put_into_failed(broker, messages(30)))
    return broker


async def held(connection: Connection, exchange: str, count: int, queue: str = FAILED_QUEUE) -> Reader:
    """A session that looks at the next jobs of the queue, and holds them."""
    reader = Reader(connection, exchange, queue, only_look=True)
    _, page = await anext(reader.pages(count, first=count))
    assert len(page) == count
    return reader


async def test_a_browsed_queue_is_not_drained(broker: RabbitmqBroker, connection: Connection, exchange: str) -> None:
    """`palermo worker --burst` ended with 3,000 jobs waiting while somebody looked at their queue."""
    await broker.publish_many(messages(30))
    look = await held(connection, exchange, 30, "jobs")
    drained = asyncio.ensure_future(is_drained(broker, QueueSelection.parse("jobs"), ()))
    await asyncio.wait([drained], timeout=0.5)
    await look.close()

    assert not await drained


async def removed(broker: Broker) -> int:
    return (await broker.sweep(FAILED_QUEUE, lambda _: Remove())).removed


async def shown(broker: Broker) -> list[str]:
    page = await browse_failed(broker, offset=0, limit=100, newest=False)
    return [job.id for job in page.messages] if page.total == 30 else []


THIRTY = [f"jobs-{number}" for number in range(30)]


@pytest.mark.parametrize(("count", "act", "result"), [(30, removed, 30), (10, shown, THIRTY), (30, shown, THIRTY)])
async def test_failed_jobs_that_another_session_looks_at_are_waited_for(
    thirty_failed: RabbitmqBroker, connection: Connection, exchange: str, count: int, act: Act, result: object
) -> None:
    look = await held(connection, exchange, count)
    acting = asyncio.ensure_future(act(thirty_failed))
    # What does not wait for the look finds nothing, or less, by then.
    await asyncio.wait([acting], timeout=0.5)
    await look.close()

    assert await acting == result


async def test_jobs_looked_at_are_swept(thirty_failed: RabbitmqBroker, another: Open, connection: Connection) -> None:
    moved, looks, looking = list[str](), list[asyncio.Task[None]](), asyncio.Event()

    async def look() -> None:
        reader = await held(connection, thirty_failed._exchange, 10)
        looking.set()
        await asyncio.sleep(0.3)
        await reader.close()

    async def publish(jobs: list[Message]) -> None:
        if not looks:
            # The sweep has read its first page, of 20.
            looks.append(asyncio.create_task(look()))
            await looking.wait()
        moved.extend(job.id for job in jobs)

    reader = Reader((await another())._connection, thirty_failed._exchange, FAILED_QUEUE)
    swept = await sweep(reader, FAILED_QUEUE, Move, publish, lambda _: None)

    assert swept.moved == 30
    assert sorted(moved) == sorted(THIRTY)


async def test_a_count_of_failed_jobs_does_not_wait_for_who_requeues_them(
    thirty_failed: RabbitmqBroker, connection: Connection, exchange: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with FailedTurn(exchange).held(connection, only_look=False):
        page = await thirty_failed.browse(FAILED_QUEUE, limit=0)

    assert (page.messages, page.total) == ((), 30)
    assert "may be left out" not in caplog.text


async def test_a_sweep_waits_for_no_program_that_consumes_failed_jobs_for_ever(
    thirty_failed: RabbitmqBroker,
    connection: Connection,
    exchange: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("palermo.brokers.rabbitmq.browsing.sweep._OTHERS", 0.2)
    look = await held(connection, exchange, 10)

    assert (await thirty_failed.sweep(FAILED_QUEUE, lambda _: Remove())).removed == 20
    await look.close()
    assert "are left out queue=failed" in caplog.text


async def test_a_slow_quorum_queue_is_not_taken_for_empty(another: Open, shared_node: Node, exchange: str) -> None:
    connection = (await another(address=parse_url(url_of(shared_node))))._connection
    queue = internal(exchange, "slow")
    member = f"{{binary_to_atom({binary('%2F_' + queue)}), node()}}"
    await connection.declare(queue, {"x-queue-type": "quorum"})
    publisher = await Publisher.open(connection)
    for _ in range(3):
        await publisher.send("", queue, Properties(), b"1")
    channel = await connection.channel()
    await channel.prefetch(1)
    await channel.consume(queue, lambda _: None)
    shared_node.evaluate(f"sys:suspend({member})")
    asyncio.get_running_loop().call_later(1.0, shared_node.evaluate, f"sys:resume({member})")

    assert await waits(channel, queue) == 2
