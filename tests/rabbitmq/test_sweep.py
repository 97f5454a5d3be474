"""A job at which one session looks is not hidden from others; the search for a job is bounded, and says how."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.messages import Properties
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.browsing import job_search
from palermo.brokers.rabbitmq.browsing.failed_log import FailedOffsets, failure_key, split_key
from palermo.brokers.rabbitmq.browsing.sweep import FailedTurn, Reader, sweep, waits
from palermo.client.failed_queues import browse_failed
from palermo.client.status import locate
from palermo.contract.broker import Broker, Page
from palermo.contract.sweep import Move, Remove
from palermo.core.address import parse_url
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection
from palermo.core.topology import FAILED_QUEUE, QUORUM, internal
from palermo.worker.parent.queue_hooks import is_drained
from tests.contract.browsing import states
from tests.contract.tools import ids, message, messages, put_into_failed, until
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
    assert "may be missing" not in caplog.text


async def test_a_sweep_waits_for_no_program_that_consumes_failed_jobs_for_ever(
    thirty_failed: RabbitmqBroker,
    connection: Connection,
    exchange: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("palermo.brokers.rabbitmq.browsing.sweep.LONG_PATIENCE", 0.2)
    look = await held(connection, exchange, 10)

    assert (await thirty_failed.sweep(FAILED_QUEUE, lambda _: Remove())).removed == 20
    await look.close()
    assert "held by another session are missing queue=failed" in caplog.text


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


# -- finding a job


@pytest.mark.slow
async def test_unsearched_places_are_named(broker: RabbitmqBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_search, "DEPTH", 2)
    monkeypatch.setattr(job_search, "QUEUES", 1)
    await broker.publish_many([*messages(5), *messages(6, "other")])

    assert await states(broker, "jobs-0", "jobs-1", "jobs-2", "jobs-4") == ["pending", "pending", "", "pending"]
    middle, elsewhere = await locate(broker, "jobs-2", "jobs"), await locate(broker, "other-0")
    assert (middle.gone, middle.unseen) == (False, ("the middle of queue 'jobs', where 1 job waits",))
    assert (elsewhere.gone, "the 1 longest queues" in elsewhere.unseen) == (False, True)


async def test_a_long_queues_end_is_given_up_in_time(broker: RabbitmqBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_search, "DEPTH", 2)
    monkeypatch.setattr(job_search, "_LONG", 5)
    await broker.publish_many(messages(6))
    assert await states(broker, "jobs-0", "jobs-5") == ["pending", "pending"]

    browse = broker.browse

    async def browse_for_ever(name: str, *, newest: bool = False, **more: Any) -> Page:
        page = await browse(name, newest=newest, **more)
        if newest:  # a broker that is quick has answered by now
            await asyncio.Event().wait()
        return page

    monkeypatch.setattr(job_search, "_READ_WITHIN", 0)
    monkeypatch.setattr(broker, "browse", browse_for_ever)

    assert await states(broker, "jobs-0", "jobs-5") == ["pending", ""]
    found = await locate(broker, "jobs-5", "jobs")
    assert found.unseen == ("queue 'jobs' behind its first 2 jobs, where 4 wait",)
    # The jobs that were being read are in their queue again.
    await until(lambda: ids(broker), [f"jobs-{number}" for number in range(6)])


async def test_a_failed_job_is_found_in_the_log(another: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_search, "FAILED", 2)
    broker = await another(queue_type=QUORUM)
    await put_into_failed(broker, messages(5))

    assert await states(broker, "jobs-4") == ["failed"]


async def test_unseen_failed_jobs_are_named(broker: RabbitmqBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_search, "FAILED", 2)
    await put_into_failed(broker, messages(5))

    assert (await locate(broker, "jobs-4", "jobs")).unseen == ("3 failed jobs",)
    assert (await locate(broker, "nobody", "jobs", failed=False)).gone
    await broker.publish(message("waits"))
    assert await states(broker, "waits") == ["pending"]


# -- the log of failed jobs


A, B, A_AGAIN = failure_key("a", 1), failure_key("b", 1), failure_key("a", 2)


def ledger(*records: tuple[str, str, int]) -> FailedOffsets:
    found = FailedOffsets()
    for what, name, offset in records:
        match what:
            case "put":
                found.put("failed", name, offset)
            case "gone":
                found.removed("failed", name)
            case "emptied":
                found.emptied("failed")
            case "lost":
                found.lost("failed", {offset})
    return found


@pytest.mark.parametrize(
    ("records", "left"),
    [
        pytest.param([("put", A, 3), ("put", B, 1)], [1, 3], id="in the order of the log"),
        pytest.param([("put", A, 1), ("put", A, 2), ("gone", A, 0)], [2], id="the first copy goes first"),
        pytest.param([("put", A, 1), ("put", A, 2), ("gone", A, 0), ("gone", A, 0)], [], id="both copies go"),
        pytest.param([("gone", A, 0), ("put", A, 1)], [1], id="logged in the wrong order: until the next sweep"),
        pytest.param([("gone", A_AGAIN, 0), ("put", A, 1)], [1], id="another failure of the same job"),
        pytest.param([("put", A, 1), ("gone", B, 0), ("emptied", "", 0), ("put", B, 2)], [2], id="emptied"),
        pytest.param([("put", A, 1), ("put", A, 4), ("lost", "", 1)], [4], id="what the log forgot"),
    ],
)
def test_what_is_left_of_the_failed_jobs(records: list[tuple[str, str, int]], left: list[int]) -> None:
    found = ledger(*records)

    assert [offset for offset, _ in found.places("failed")] == left
    assert found.places("failed:mail") == []


def test_copies_are_counted_by_a_key_that_can_be_read_back() -> None:
    assert ledger(("put", A, 1), ("put", A, 2), ("put", B, 3)).copies("failed") == {A: 2, B: 1}
    assert split_key(failure_key("with blanks", 7)) == ("with blanks", 7)
