"""Enqueuing while the broker, or the way to it, is not well: bounded in time, and clear."""

import asyncio
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

import palermo
from palermo.client import client as clients
from palermo.client import io_thread, session_keeper
from palermo.client.client import Client
from palermo.contract.broker import Broker
from palermo.core.address import parse_url
from palermo.errors import BrokerRefused, BrokerUnavailable, UrlInvalid
from palermo.settings.settings import Settings
from tests.helpers import Stopwatch, eventually
from tests.tcp_proxy import TcpProxy

pytestmark = pytest.mark.slow


#: Seconds that publishing may take in tests where it cannot succeed, and what is allowed on top of it on a busy
#: machine: together less than twice the time.
TIMEOUT, SLACK = 3.0, 2.5

#: The same in tests where it succeeds, though the machine may stand still meanwhile.
PATIENCE = 12.0


@palermo.job(name="shop.outage")
def work(number: int = 0) -> None: ...


@palermo.job(name="shop.only_one", unique="until_done")
def only_one(number: int) -> None: ...


def unavailable(call: Callable[[], Any], *words: str, within: float = TIMEOUT + SLACK) -> float:
    """How long the call took to fail with BrokerUnavailable; its text has the words and no password."""
    begun, watch = time.monotonic(), Stopwatch()
    with pytest.raises(BrokerUnavailable) as raised:
        call()
    took = time.monotonic() - begun
    assert watch.seconds() < within
    assert "secret" not in str(raised.value)
    for word in words:
        assert word in str(raised.value)
    return took


@pytest.fixture
def port() -> Iterator[int]:
    """A port on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def mute() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def relay(rabbitmq_url: str) -> Iterator[TcpProxy]:
    ((host, port), *_) = parse_url(rabbitmq_url).hosts
    with TcpProxy(host, port) as relay:
        yield relay


@pytest.fixture
def through(relay: TcpProxy, rabbitmq_url: str, exchange: str) -> Client:
    """The default client, which reaches RabbitMQ by way of the relay."""
    address = parse_url(rabbitmq_url)
    vhost = "%2F" if address.vhost == "/" else address.vhost
    url = f"amqp://{address.username}:{address.password}@127.0.0.1:{relay.port}/{vhost}"
    return clients.use(Client(Settings(url=url, exchange=exchange, publish_timeout=PATIENCE)))


def stored(client: Client, relay: TcpProxy, rabbitmq_url: str) -> int:
    """How many jobs wait, counted past the relay."""
    with Client(replace(client.settings, url=rabbitmq_url, publish_timeout=30.0)) as direct:
        return direct.run(lambda broker: broker.browse("jobs", limit=1)).total


# -- nobody there


def test_a_broker_that_is_down_is_named_by_host_and_port_in_time(port: int) -> None:
    palermo.connect(f"amqp://me:secret@127.0.0.1:{port}/", publish_timeout=TIMEOUT)

    unavailable(work.enqueue, f"127.0.0.1:{port}", "did not answer within 3 s")
    unavailable(lambda: work.enqueue_many([(1,), (2,)]), f"127.0.0.1:{port}")
    unavailable(lambda: asyncio.run(work.enqueue_async(1)), f"127.0.0.1:{port}")


def test_a_silent_broker_is_given_up_in_time(mute: int) -> None:
    client = palermo.connect(f"amqp://me:secret@127.0.0.1:{mute}/", publish_timeout=TIMEOUT)

    unavailable(work.enqueue, f"127.0.0.1:{mute}")
    unavailable(lambda: work.enqueue_many([(1,)]), f"127.0.0.1:{mute}")
    unavailable(lambda: client.run(lambda broker: broker.queues()), f"127.0.0.1:{mute}")


def test_a_host_without_an_address_is_named_in_time() -> None:
    palermo.connect("amqp://me:secret@no-such-host.invalid/", publish_timeout=TIMEOUT)

    unavailable(work.enqueue, "no-such-host.invalid:5672")


def test_many_threads_fail_together_and_not_one_after_another(mute: int) -> None:
    palermo.connect(f"amqp://me:secret@127.0.0.1:{mute}/", publish_timeout=TIMEOUT)
    took: list[float] = []
    # One after another would take 30 s.
    threads = [threading.Thread(target=lambda: took.append(unavailable(work.enqueue, within=15))) for _ in range(10)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(took) == 10


def test_a_question_that_cannot_be_asked_is_told_at_once(port: int) -> None:
    client = palermo.connect(f"amqp://me:secret@127.0.0.1:{port}/", publish_timeout=30)
    watch = Stopwatch()

    with pytest.raises(BrokerUnavailable, match=str(port)):
        client.run(lambda broker: broker.queues())

    assert watch.seconds() < 15


def test_closing_does_not_wait_for_a_broker_that_says_nothing(mute: int) -> None:
    client = palermo.connect(f"amqp://me:secret@127.0.0.1:{mute}/", publish_timeout=30)
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

    assert watch.seconds() < 15
    assert "was closed meanwhile" in str(errors[0])


def test_a_scheme_that_nobody_serves_is_refused_at_once() -> None:
    palermo.connect("gopher://localhost/")

    with pytest.raises(UrlInvalid, match="no broker serves gopher://"):
        work.enqueue()


# -- there, and then not


def test_a_wrong_password_is_refused_at_once(rabbitmq_url: str) -> None:
    ((host, port), *_) = parse_url(rabbitmq_url).hosts
    palermo.connect(f"amqp://guest:secret@{host}:{port}/", publish_timeout=30)
    watch = Stopwatch()

    with pytest.raises(BrokerRefused) as raised:
        work.enqueue()

    assert watch.seconds() < 20
    assert "secret" not in str(raised.value)


def test_a_session_that_was_cut_is_reopened_and_the_job_published(
    through: Client, relay: TcpProxy, rabbitmq_url: str
) -> None:
    work.enqueue(1)

    for number in range(5):
        relay.hang_up()
        work.enqueue(number)
    relay.hang_up()
    work.enqueue_many([(number,) for number in range(10)])

    assert stored(through, relay, rabbitmq_url) >= 16
    assert relay.accepted >= 7


def test_a_broker_that_comes_back_in_time_gets_the_job(through: Client, relay: TcpProxy, rabbitmq_url: str) -> None:
    work.enqueue(1)
    relay.refuse()
    relay.hang_up()
    timer = threading.Timer(1.0, relay.listen)
    timer.start()

    work.enqueue(2)

    timer.join()
    assert stored(through, relay, rabbitmq_url) >= 2


def test_a_line_that_swallows_everything_is_replaced_while_there_is_time(
    through: Client, relay: TcpProxy, rabbitmq_url: str
) -> None:
    work.enqueue(1)
    relay.stall()
    watch = Stopwatch()

    work.enqueue(2)

    assert watch.seconds() < PATIENCE + SLACK
    assert stored(through, relay, rabbitmq_url) == 2


def test_a_dead_line_is_given_up_in_time_and_used_again_when_it_heals(
    through: Client, relay: TcpProxy, rabbitmq_url: str
) -> None:
    work.enqueue(1)
    relay.stall(new_too=True)

    within = PATIENCE + SLACK
    unavailable(work.enqueue, f"127.0.0.1:{relay.port}", "did not answer within 12 s", within=within)
    unavailable(lambda: work.enqueue_many([(1,)] * 10), f"127.0.0.1:{relay.port}", within=within)
    relay.hang_up()
    relay.listen()
    work.enqueue(3)

    assert stored(through, relay, rabbitmq_url) == 2


def test_a_question_on_a_cut_session_is_repeated_where_that_is_safe(through: Client, relay: TcpProxy) -> None:
    through.run(lambda broker: broker.queues())
    relay.hang_up()

    assert through.run(lambda broker: broker.workers(), again=True) == []


def test_a_command_that_is_given_after_the_session_was_cut_is_carried_out(through: Client, relay: TcpProxy) -> None:
    async def itself(broker: Broker) -> Broker:
        return broker

    work.enqueue(1)
    session = through.run(itself)
    relay.hang_up()
    eventually(lambda: session.is_lost)

    assert through.run(lambda broker: broker.purge("jobs")) == 1


def test_threads_that_enqueue_through_an_unsteady_line_lose_nothing(
    through: Client, relay: TcpProxy, rabbitmq_url: str
) -> None:
    confirmed: list[str] = []
    stop = threading.Event()

    def enqueue() -> None:
        while not stop.is_set():
            try:
                confirmed.append(work.enqueue().id)
            except BrokerUnavailable:
                continue

    threads = [threading.Thread(target=enqueue) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        stop.wait(0.15)
        relay.hang_up()
    eventually(lambda: confirmed)
    stop.set()
    for thread in threads:
        thread.join()

    with Client(replace(through.settings, url=rabbitmq_url, publish_timeout=30.0)) as direct:
        page = direct.run(lambda broker: broker.browse("jobs", limit=100_000))
    assert set(confirmed) <= {message.id for message in page.messages}


def test_a_leading_client_closes_all_connections_on_a_silent_line(
    through: Client, relay: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (io_thread, session_keeper):  # less than a silent connection takes to close, as on a slow machine
        monkeypatch.setattr(module, "CLOSE_TIMEOUT", 0.3)
    only_one.enqueue(1)  # nobody else can lead
    relay.stall(new_too=True)

    through.close()

    gc.collect()  # a socket that was left open is a warning, and warnings are errors
