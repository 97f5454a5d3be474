"""Enqueuing while the broker, or the way to it, is not well: bounded in time, and clear."""

import asyncio
import gc
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

import palermo
from palermo.client import client as clients
from palermo.client import io_thread, session_keeper
from palermo.client.client import Client
from palermo.contract.broker import Broker
from palermo.core.message import Message
from palermo.errors import BrokerUnavailable
from palermo.settings.settings import Settings
from tests.client.conftest import run_threads
from tests.helpers import Stopwatch, eventually
from tests.tcp_proxy import TcpProxy

pytestmark = pytest.mark.slow

#: Seconds that publishing may take in tests where it cannot succeed, and what is allowed on top of it on a busy
#: machine.
TIMEOUT, SLACK = 1.0, 5.0

#: The same in tests where it succeeds, though the machine may stand still meanwhile.
PATIENCE = 12.0


@palermo.job(name="shop.outage")
def work(number: int = 0) -> None: ...


@palermo.job(name="shop.only_one", unique="until_done")
def only_one(number: int) -> None: ...


def unavailable(call: Callable[[], Any], *words: str, within: float = TIMEOUT + SLACK) -> None:
    """The call fails in time with BrokerUnavailable; its text has the words and no password."""
    watch = Stopwatch()
    with pytest.raises(BrokerUnavailable) as raised:
        call()
    assert watch.seconds() < within
    assert "secret" not in str(raised.value)
    for word in words:
        assert word in str(raised.value)


@pytest.fixture
def mute() -> Iterator[str]:
    """A broker that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def closed() -> Iterator[str]:
    """A broker that is down: nobody listens on its port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def unknown() -> str:
    """A host without an address."""
    return "no-such-host.invalid:5672"


@pytest.fixture
def through(proxy: TcpProxy, rabbitmq_url: str, exchange: str) -> Client:
    """The default client, which reaches RabbitMQ by way of the proxy."""
    return clients.use(Client(Settings(url=proxy.url(rabbitmq_url), exchange=exchange, publish_timeout=PATIENCE)))


def stored(client: Client) -> Sequence[Message]:
    """The jobs that wait, read over a line of its own."""
    with Client(replace(client.settings, publish_timeout=30.0)) as other:
        return other.run(lambda broker: broker.browse("jobs", limit=100_000)).messages


# -- nobody there


@pytest.mark.parametrize("where", ["closed", "mute", "unknown"])
def test_a_broker_that_does_not_answer_is_named_in_time(where: str, request: pytest.FixtureRequest) -> None:
    host = request.getfixturevalue(where)
    palermo.connect(f"amqp://me:secret@{host}/", publish_timeout=TIMEOUT)

    unavailable(work.enqueue, host, "did not answer within 1 s")
    unavailable(lambda: work.enqueue_many([(1,), (2,)]), host)
    unavailable(lambda: asyncio.run(work.enqueue_async(1)), host)


def test_many_threads_fail_together_and_not_one_after_another(mute: str) -> None:
    palermo.connect(f"amqp://me:secret@{mute}/", publish_timeout=3)
    failed: list[str] = []

    def enqueue(number: int) -> None:
        # One after another would take 30 s.
        unavailable(work.enqueue, within=15)
        failed.append(mute)

    run_threads(10, enqueue)

    assert len(failed) == 10


def test_a_question_that_cannot_be_asked_is_told_at_once(closed: str) -> None:
    client = palermo.connect(f"amqp://me:secret@{closed}/", publish_timeout=60)

    unavailable(lambda: client.run(lambda broker: broker.queues()), closed, within=30)


def test_closing_does_not_wait_for_a_broker_that_says_nothing(mute: str) -> None:
    client = palermo.connect(f"amqp://me:secret@{mute}/", publish_timeout=60)
    errors: list[Exception] = []

    def enqueue() -> None:
        try:
            work.enqueue()
        except BrokerUnavailable as error:
            errors.append(error)

    thread = threading.Thread(target=enqueue)
    thread.start()
    eventually(lambda: client._thread is not None and bool(asyncio.all_tasks(client._thread._loop)))
    watch = Stopwatch()

    client.close()
    thread.join()

    assert watch.seconds() < 30
    assert "was closed" in str(errors[0])


# -- there, and then not


def test_a_session_that_was_cut_is_reopened_and_the_job_published(through: Client, proxy: TcpProxy) -> None:
    work.enqueue(1)

    for number in range(5):
        proxy.hang_up()
        work.enqueue(number)
    proxy.hang_up()
    work.enqueue_many([(number,) for number in range(10)])

    assert len(stored(through)) >= 16
    assert proxy.accepted >= 7


def test_a_line_that_swallows_everything_is_replaced_while_there_is_time(through: Client, proxy: TcpProxy) -> None:
    work.enqueue(1)
    proxy.stall()
    watch = Stopwatch()

    work.enqueue(2)

    assert watch.seconds() < PATIENCE + SLACK
    assert len(stored(through)) == 2


def test_a_dead_line_is_given_up_in_time_and_used_again_when_it_heals(through: Client, proxy: TcpProxy) -> None:
    work.enqueue(1)
    proxy.stall(new_too=True)

    within = PATIENCE + SLACK
    unavailable(work.enqueue, f"127.0.0.1:{proxy.port}", "did not answer within 12 s", within=within)
    proxy.hang_up()
    proxy.listen()
    work.enqueue(3)

    assert len(stored(through)) == 2


def test_questions_and_commands_after_a_cut_go_over_a_new_session(through: Client, proxy: TcpProxy) -> None:
    async def itself(broker: Broker) -> Broker:
        return broker

    work.enqueue(1)
    proxy.hang_up()
    assert through.run(lambda broker: broker.workers(), again=True) == []

    session = through.run(itself)
    proxy.hang_up()
    eventually(lambda: session.is_lost)
    assert through.run(lambda broker: broker.purge("jobs")) == 1


def test_threads_that_enqueue_through_an_unsteady_line_lose_nothing(through: Client, proxy: TcpProxy) -> None:
    confirmed: list[str] = []
    stop = threading.Event()

    def enqueue() -> None:
        while not stop.is_set():
            try:
                confirmed.append(work.enqueue().id)
            except BrokerUnavailable:
                continue

    def cut() -> None:
        try:
            for _ in range(10):
                stop.wait(0.15)
                proxy.hang_up()
            eventually(lambda: confirmed)
        finally:
            stop.set()

    run_threads(5, lambda number: enqueue() if number else cut())

    assert set(confirmed) <= {message.id for message in stored(through)}


def test_a_leading_client_closes_all_connections_on_a_silent_line(
    through: Client, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (io_thread, session_keeper):  # less than a silent connection takes to close, as on a slow machine
        monkeypatch.setattr(module, "CLOSE_TIMEOUT", 0.3)
    only_one.enqueue(1)  # nobody else can lead
    proxy.stall(new_too=True)

    through.close()

    gc.collect()  # a socket that was left open is a warning, and warnings are errors
