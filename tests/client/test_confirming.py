"""Jobs that are sent at once, on a session that is ready, when the broker does not just take them."""

import asyncio
import threading
import uuid
from collections.abc import Iterator

import pytest
from pika.adapters.blocking_connection import BlockingChannel

import palermo
from palermo.client import client as clients
from palermo.client.client import Client
from palermo.client.prepare import new_id
from palermo.contract.socket_lock import SocketLock
from palermo.errors import PublishRefused
from palermo.settings.settings import Settings
from tests.client.conftest import run_threads
from tests.helpers import HANGS
from tests.rabbitmq_node import Node, clear_policy, set_policy, url_of


@palermo.job(name="shop.confirmed")
def work(number: int = 0, text: str = "") -> None: ...


#: A test with this runs on both brokers with a server; without it on RabbitMQ.
on_each = pytest.mark.parametrize("url", ["rabbitmq", "redis"], indirect=True)


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{getattr(request, 'param', 'rabbitmq')}_url")
    return found


@pytest.fixture
def client(url: str, exchange: str) -> Client:
    """A default client whose session is open and knows the queue."""
    made = clients.use(Client(Settings(url=url, exchange=exchange, publish_timeout=30.0)))
    work.enqueue(0)
    return made


def numbers(client: Client) -> list[str | None]:
    # Again: a session that Ctrl-C has ended may be found so by this look, and not by an enqueue on another connection.
    page = client.run(lambda broker: broker.browse("jobs", limit=10_000), again=True)
    return [message.preview for message in page.messages]


@pytest.mark.slow
@on_each
async def test_a_coroutine_cancelled_before_its_job_is_sent_enqueues_none(client: Client) -> None:
    busy = threading.Event()
    client._io()._loop.call_soon_threadsafe(busy.wait, HANGS)
    enqueuing = asyncio.ensure_future(work.enqueue_async(1))
    await asyncio.sleep(0)

    enqueuing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await enqueuing
    busy.set()

    await work.enqueue_async(2)
    assert await asyncio.to_thread(numbers, client) == ["0", "2"]


def test_a_queue_deleted_meanwhile_is_made_again(client: Client, channel: BlockingChannel, exchange: str) -> None:
    channel.queue_delete(f"{exchange}.jobs")
    work.enqueue(1)
    channel.queue_delete(f"{exchange}.jobs")
    jobs = work.enqueue_many([(2,), (3,)])

    assert len(jobs) == 2
    assert sorted(numbers(client), key=str) == ["2", "3"]


def test_a_full_queue_refuses_one_and_many_by_name(client: Client, channel: BlockingChannel, exchange: str) -> None:
    channel.queue_delete(f"{exchange}.jobs")
    full = {"x-max-length": 0, "x-overflow": "reject-publish"}
    channel.queue_declare(f"{exchange}.jobs", durable=True, arguments=full)
    channel.queue_bind(f"{exchange}.jobs", exchange, "jobs")

    for enqueue in (lambda: work.enqueue(1), lambda: work.enqueue_many([(1,), (2,)]), lambda: work.enqueue(3)):
        with pytest.raises(PublishRefused, match="full"):
            enqueue()


def test_a_full_quorum_queue_refuses_by_name_and_does_not_time_out(shared_node: Node, exchange: str) -> None:
    made = Client(Settings(url=url_of(shared_node), exchange=exchange, queue_type="quorum", publish_timeout=30.0))
    set_policy(shared_node, exchange, f"^{exchange}.jobs$", {"max-length": 1, "overflow": "reject-publish"})

    def enqueue_twenty() -> None:
        for number in range(20):  # it takes a few more than its limit
            made.enqueue("shop.confirmed", (number,), {}, queue="jobs")

    try:
        with pytest.raises(PublishRefused, match="full"):
            enqueue_twenty()
    finally:
        clear_policy(shared_node, exchange)
        made.close()


@on_each
def test_bodies_of_any_size_come_whole_and_in_order_over_all_batches(client: Client) -> None:
    sizes = [1, 131_000, 131_064, 131_065, 400_000]
    for size in sizes:
        work.enqueue(1, "x" * size)
    work.enqueue_many([(1, "y" * size) for size in sizes] + [(number,) for number in range(1_500)])

    page = client.run(lambda broker: broker.browse("jobs", limit=10_000))
    values = [client.serializers.decode_for_display(message) for message in page.messages[1:]]
    large = [[1, letter * size] for letter in "xy" for size in sizes]
    assert values == large + [[number] for number in range(1_500)]


def test_many_threads_lose_nothing_and_keep_their_order(client: Client) -> None:
    def enqueue(thread: int) -> None:
        for number in range(50):
            work.enqueue(1_000 * thread + number)

    run_threads(4, enqueue)

    found = [int(str(preview)) for preview in numbers(client)[1:]]
    for each in range(4):
        assert [one for one in found if one // 1_000 == each] == [1_000 * each + number for number in range(50)]


@pytest.fixture
def sending() -> Iterator[pytest.MonkeyPatch]:
    """To be undone before the test is over."""
    with pytest.MonkeyPatch.context() as patched:
        yield patched


def test_an_interrupt_amid_sending_leaves_nothing_wrong_behind(client: Client, sending: pytest.MonkeyPatch) -> None:
    def interrupted(socket_lock: SocketLock, data: bytes) -> int:
        raise KeyboardInterrupt

    sending.setattr(SocketLock, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        work.enqueue(1)
    sending.undo()
    for number in (2, 3):
        work.enqueue(number)

    assert set(numbers(client)[1:]) - {"1"} == {"2", "3"}
    assert client._thread is not None
    assert client._thread.alive


def test_a_signal_handler_may_enqueue_while_its_thread_is_sending(client: Client, sending: pytest.MonkeyPatch) -> None:
    write = SocketLock.write

    def amid_sending(socket_lock: SocketLock, data: bytes) -> int:
        sending.undo()
        work.enqueue(2)
        return write(socket_lock, data)

    sending.setattr(SocketLock, "write", amid_sending)
    work.enqueue(1)
    work.enqueue(3)

    assert set(numbers(client)[1:]) == {"1", "2", "3"}


def test_an_id_is_a_random_uuid() -> None:
    ids = {new_id() for _ in range(1_000)}

    assert len(ids) == 1_000
    assert {(uuid.UUID(id).version, uuid.UUID(id).variant, str(uuid.UUID(id)) == id) for id in ids} == {
        (4, uuid.RFC_4122, True)
    }
