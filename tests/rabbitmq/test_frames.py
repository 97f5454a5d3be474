"""Messages, questions and acks that pika does not read or write: the same bytes, and the same events, as pika's own."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pika
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pika import exceptions, frame, spec

from palermo.brokers.rabbitmq.amqp import frames
from palermo.brokers.rabbitmq.amqp.frames import INCOMPLETE, Counted, Delivered, read_counted, read_got
from palermo.brokers.rabbitmq.amqp.messages import Properties, read_properties, unread
from palermo.brokers.rabbitmq.amqp.transport import AsyncioConnection
from palermo.contract import socket_lock as socket_locks
from palermo.contract.broker import SessionParameters, open_broker
from palermo.contract.socket_lock import SocketLock
from palermo.core.address import parse_url
from palermo.errors import BrokerRefused

# -- deliveries and acks

FRAME_MAX = 4_096

#: What one body frame holds.
PIECE = FRAME_MAX - 8

_ABLE = {"capabilities": {"publisher_confirms": True, "basic.nack": True}}

HEARTBEAT = frame.Heartbeat().marshal()


class Line(asyncio.Transport):
    """The client's side of a line whose other side is a script, or a socket; keeps what it is given to send."""

    def __init__(self, end: socket.socket | None = None, **extra: Any) -> None:
        super().__init__({"socket": end} | extra)
        self.sent = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)

    def get_write_buffer_size(self) -> int:
        return len(self.sent)

    def close(self) -> None:
        self.closed = True

    abort = close


class Client:
    """An open connection with two consumers and a channel that confirms, and what happened on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, directly: bool) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.line = Line()
        self.connection = AsyncioConnection(
            pika.ConnectionParameters(heartbeat=0, frame_max=FRAME_MAX),
            loop,
            on_open=lambda _: self.events.append(("open",)),
            on_error=lambda _, error: self.events.append(("refused", type(error))),
            on_close=lambda _, error: self.events.append(("closed", type(error))),
        )
        self.connection.connection_made(self.line)
        self.hear(method(0, spec.Connection.Start(0, 9, _ABLE, "PLAIN", "en_US")))
        self.hear(method(0, spec.Connection.Tune(100, FRAME_MAX, 0)))
        self.hear(method(0, spec.Connection.OpenOk()))
        self.channels = [self._channel(number) for number in (1, 2, 3)]
        for channel in self.channels[:2]:
            tag = f"tag-{channel.channel_number}"
            if directly:
                self.connection.deliver_to(channel, tag, self._taken(channel))
            channel.basic_consume("mail", self._on_message, consumer_tag=tag)
            self.hear(method(channel.channel_number, spec.Basic.ConsumeOk(tag)))
        self.channels[2].confirm_delivery(
            lambda confirm: self.events.append(("confirm", confirm.method.delivery_tag)), callback=lambda _: None
        )
        self.hear(method(3, spec.Confirm.SelectOk()))
        self.connection.add_on_connection_blocked_callback(lambda *_: self.events.append(("blocked",)))
        self.connection.flush()
        self.line.sent = b""

    def hear(self, data: bytes) -> None:
        self.connection.data_received(data)

    def _channel(self, number: int) -> Any:
        made = self.connection.channel(number, on_open_callback=lambda _: None)
        self.hear(method(number, spec.Channel.OpenOk()))
        made.add_on_close_callback(lambda _, reason: self.events.append(("channel", number, reason.reply_code)))
        made.add_on_cancel_callback(lambda _: self.events.append(("cancel", number)))
        return made

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        tag, redelivered = method.delivery_tag, method.redelivered
        said = (method.exchange, method.routing_key, properties.headers, properties.message_id)
        self.events.append(("message", channel.channel_number, tag, redelivered, *said, body))

    def _taken(self, channel: Any) -> Callable[[Delivered, bytes], None]:
        def taken(found: Delivered, data: bytes) -> None:
            properties = read_properties(data, found.properties)
            said = (found.exchange, found.routing_key, properties.get("headers"), properties.get("message_id"))
            number, tag, redelivered = channel.channel_number, found.tag, found.redelivered
            self.events.append(("message", number, tag, redelivered, *said, found.body))

        return taken


def method(channel: int, what: Any) -> bytes:
    return cast(bytes, frame.Method(channel, what).marshal())


def parts(channel: int, said: Any, properties: spec.BasicProperties, body: bytes) -> list[bytes]:
    """The frames of a message, as pika writes them."""
    pieces = [body[start : start + PIECE] for start in range(0, len(body), PIECE)]
    bodies = [frame.Body(channel, piece).marshal() for piece in pieces]
    return [method(channel, said), frame.Header(channel, len(body), properties).marshal(), *bodies]


def properties_of(tag: int) -> Properties:
    return Properties(headers={"id": f"{tag}", "n": tag}, message_id=f"{tag}", delivery_mode=2)


def delivery(channel: int, tag: int, body: bytes, *, consumer: str = "", redelivered: bool = False) -> list[bytes]:
    """Its frames."""
    said = spec.Basic.Deliver(consumer or f"tag-{channel}", tag, redelivered, "palermo", "mail")
    return parts(channel, said, properties_of(tag), body)


def answer(channel: int, tag: int, body: bytes, *, redelivered: bool = False) -> list[bytes]:
    """Its frames."""
    return parts(channel, spec.Basic.GetOk(tag, redelivered, "palermo", "mail", 17), properties_of(tag), body)


EMPTY = method(1, spec.Basic.GetEmpty(""))

SIZES = st.sampled_from([0, 1, 100, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 1])


class Asker(Client):
    """Asks the queue "mail" on channel 1, and again after each answer, acknowledging what came."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, directly: bool) -> None:
        super().__init__(loop, directly=False)
        self._directly = directly
        self.channel = self.channels[0]
        self.hear(method(1, spec.Basic.Cancel("tag-1")))
        self.channel.add_callback(self._on_empty, [spec.Basic.GetEmpty], False)
        if directly:
            self.connection.answers_to(self.channel, self._on_read)
        self.events.clear()
        self.line.sent = b""
        self.ask()

    def ask(self, acked: int = 0) -> None:
        if not self.channel.is_open:
            return
        if self._directly:
            self.connection.get(self.channel, "mail", self._on_got, acked=acked)
            return
        if acked:
            self.channel.basic_ack(acked)
        self.channel.basic_get("mail", self._on_got)
        self.connection.flush()

    def _on_read(self, found: Delivered, data: bytes) -> None:
        if not found.tag:
            self._on_empty(None)
            return
        properties = read_properties(data, found.properties)
        said = (found.exchange, found.routing_key, properties.get("headers"), properties.get("message_id"))
        self._tell(found.tag, found.redelivered, *said, found.body)

    def _on_got(self, _: object, method: Any, properties: Any, body: bytes) -> None:
        said = (method.exchange, method.routing_key, properties.headers, properties.message_id)
        self._tell(method.delivery_tag, method.redelivered, *said, body)

    def _tell(self, tag: int, *said: object) -> None:
        self.events.append(("got", tag, *said))
        self.ask(acked=tag)

    def _on_empty(self, _: object) -> None:
        self.events.append(("empty",))
        self.ask()


@st.composite
def streams(draw: st.DrawFn, kinds: list[str], channels: set[int], message: Callable[..., list[bytes]]) -> bytes:
    """What a broker sends to somebody who gets messages on these channels."""
    frames: list[bytes] = []
    alive = set(channels)
    for tag in range(1, draw(st.integers(1, 8)) + 1):
        channel = draw(st.sampled_from(sorted(alive)))
        match draw(st.sampled_from(["message"] * 6 + ["heartbeat", "blocked", "flow", "close"] + kinds)):
            case "message":
                pieces = message(channel, tag, bytes([tag]) * draw(SIZES), redelivered=draw(st.booleans()))
                for number, piece in enumerate(pieces):
                    frames.append(piece)
                    if number < len(pieces) - 1 and draw(st.integers(0, 9)) == 0:
                        frames.append(HEARTBEAT if draw(st.booleans()) else method(3, spec.Basic.Ack(tag)))
            case "heartbeat":
                frames.append(HEARTBEAT)
            case "blocked":
                frames.append(method(0, spec.Connection.Blocked("memory")))
            case "flow":
                frames.append(method(channel, spec.Channel.Flow(False)))
            case "confirm":
                frames.append(method(3, spec.Basic.Ack(tag)))
            case "stray":
                frames += delivery(channel, tag, b"for nobody", consumer="another")
            case "empty":
                frames.append(EMPTY)
            case "close":
                frames.append(method(channel, spec.Channel.Close(406, "enough", 0, 0)))
                alive.discard(channel)
                if not alive:
                    break
    return b"".join(frames)


def same(ours: Client, theirs: Client) -> None:
    assert ours.events == theirs.events
    for client in (ours, theirs):
        client.connection.flush()
    assert ours.line.sent == theirs.line.sent
    # By these pika tells whether the broker is alive.
    assert ours.connection.bytes_received == theirs.connection.bytes_received


@pytest.mark.parametrize("asks", [False, True], ids=["deliveries", "answers"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_our_reader_gives_what_pika_gives(asks: bool, data: st.DataObject, loop: asyncio.AbstractEventLoop) -> None:
    make = Asker if asks else Client
    given = (["empty"] * 3, {1}, answer) if asks else (["confirm", "stray"], {1, 2}, delivery)
    whole = data.draw(streams(*given))
    theirs, ours = make(loop, directly=False), make(loop, directly=True)
    theirs.hear(whole)
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=12).map(sorted))
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        ours.hear(whole[start:end])
    same(ours, theirs)


@pytest.mark.parametrize("spoilt", [0, 1, 2])
@pytest.mark.parametrize("asks", [False, True], ids=["delivery", "answer"])
def test_a_frame_with_a_wrong_end_is_an_error(spoilt: int, asks: bool, loop: asyncio.AbstractEventLoop) -> None:
    frames = (answer if asks else delivery)(1, 1, b"body")
    frames[spoilt] = frames[spoilt][:-1] + b"\x00"
    for stream in (b"".join(frames), EMPTY[:-1] + b"\x00"):
        client = (Asker if asks else Client)(loop, directly=True)
        with pytest.raises(exceptions.InvalidFrameError):
            client.hear(stream)
        assert not [event for event in client.events if event[0] in ("message", "got", "empty")]


def test_bytes_that_are_no_frame_are_pikas_to_refuse(loop: asyncio.AbstractEventLoop) -> None:
    client = Client(loop, directly=True)
    client.hear(b"".join(delivery(1, 1, b"body")) + b"AMQP\x00\x00\x09\x01")
    assert client.events[-1][:3] == ("message", 1, 1)


def test_an_ack_is_pikas_byte_for_byte_and_keeps_its_place(loop: asyncio.AbstractEventLoop) -> None:
    assert frames.ack(7, 2**40) == method(7, spec.Basic.Ack(2**40, False))
    client = Client(loop, directly=True)
    client.channels[0].basic_qos(prefetch_count=2)
    client.connection.ack(client.channels[0], 5)
    assert client.line.sent == method(1, spec.Basic.Qos(0, 2, False)) + frames.ack(1, 5)
    client.connection.ack(client.channels[1], 6)
    assert client.line.sent.endswith(frames.ack(2, 6))


def test_acks_of_one_turn_leave_together_but_not_any_number_of_them(loop: asyncio.AbstractEventLoop) -> None:
    client = Client(loop, directly=True)
    client.connection.acks_together = True
    channel = client.channels[0]

    client.connection.ack(channel, 1)
    client.connection.ack(channel, 2)
    client.channels[1].basic_qos(prefetch_count=2)
    assert client.line.sent == b""
    loop.run_until_complete(asyncio.sleep(0))
    assert client.line.sent == frames.ack(1, 1) + frames.ack(1, 2) + method(2, spec.Basic.Qos(0, 2, False))

    client.line.sent = b""
    for tag in range(3, 103):
        client.connection.ack(channel, tag)
    assert client.line.sent.startswith(frames.ack(1, 3))
    loop.run_until_complete(asyncio.sleep(0))
    assert client.line.sent == b"".join(frames.ack(1, tag) for tag in range(3, 103))


def test_a_closed_channel_takes_no_ack_and_its_number_is_used_again(loop: asyncio.AbstractEventLoop) -> None:
    client = Client(loop, directly=True)
    old = client.channels[0]
    client.hear(method(1, spec.Channel.Close(406, "enough", 0, 0)))
    with pytest.raises(exceptions.ChannelWrongStateError):
        client.connection.ack(old, 1)
    client.connection.channel(1, on_open_callback=client.channels.append)
    client.hear(method(1, spec.Channel.OpenOk()))
    new = client.channels[-1]
    new.basic_consume("mail", client._on_message, consumer_tag="tag-1")
    client.connection.deliver_no_more(new)
    client.hear(method(1, spec.Basic.ConsumeOk("tag-1")))
    client.hear(b"".join(delivery(1, 1, b"for the new one")))
    assert client.events[-1][:3] == ("message", 1, 1)


def test_a_consumer_that_is_being_cancelled_takes_nothing_more(loop: asyncio.AbstractEventLoop) -> None:
    client = Client(loop, directly=True)
    client.connection.deliver_no_more(client.channels[0])
    client.channels[0].basic_cancel("tag-1", callback=lambda _: None)
    client.hear(b"".join(delivery(1, 9, b"raced in")))
    client.connection.flush()
    assert method(1, spec.Basic.Reject(9, True)) in client.line.sent
    assert not [event for event in client.events if event[0] == "message"]


@pytest.mark.parametrize("version", ["1.3.1", "1.5.0", "2.0.0b1", "?"])
def test_a_version_of_pika_that_was_not_tested_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pika, "__version__", version)

    with pytest.raises(BrokerRefused, match=r"pika .* is installed, but Palermo supports only 1\.3\.2 to 1\.4"):
        asyncio.run(open_broker(SessionParameters(address=parse_url("amqp://127.0.0.1:1"), exchange="palermo")))


# -- questions and answers of a worker on several queues


def test_an_ack_and_the_next_question_leave_in_one_write(loop: asyncio.AbstractEventLoop) -> None:
    asker = Asker(loop, directly=True)
    writes: list[bytes] = []
    asker.line.write = lambda data: writes.append(bytes(data))  # type: ignore[method-assign]
    asker.hear(b"".join(answer(1, 1, b"body")))
    assert writes == [method(1, spec.Basic.Ack(1)) + method(1, spec.Basic.Get(queue="mail"))]


def test_subscriptions_are_pikas_byte_for_byte() -> None:
    consume = spec.Basic.Consume(queue="ü", consumer_tag="t:ü", nowait=True)
    assert frames.consume(7, "ü", "t:ü") == method(7, consume)
    assert frames.cancel(7, "t:ü") == method(7, spec.Basic.Cancel("t:ü", nowait=True))


def test_a_count_is_incomplete_at_every_byte_but_the_last() -> None:
    counted = method(1, spec.Queue.DeclareOk("mail", 70_000, 3))
    for short_of in range(8, len(counted)):
        assert read_counted(counted[:short_of], 0, 1) == INCOMPLETE
    assert read_counted(b"..." + counted, 3, 1) == Counted(3 + len(counted), 70_000, 3)
    assert read_counted(b"".join(answer(1, 9, b"body")), 0, 1) is None
    assert read_got(counted, 0, 1) is None


@pytest.mark.parametrize("id", ["one", "", None, "\xff" * 9, "q\\xff"])
@pytest.mark.parametrize("body", [b"", b"[1]"])
def test_what_was_got_goes_on_with_the_properties_that_it_came_with(id: str | None, body: bytes) -> None:
    headers = {"share": 2.0, "job-class": "shop.mail"}
    properties = Properties(headers=headers, message_id=id, delivery_mode=2, priority=3, app_id="theirs")
    data = b"before" + b"".join(parts(1, spec.Basic.GetOk(7, False, "palermo", "mail", 0), properties, body))
    found = read_got(data, 6, 1)
    assert isinstance(found, Delivered)

    got = unread(found, data)
    for _ in range(2):  # before its properties are read, and then
        assert (got.encoded, got.id) == (b"".join(properties.encode()), id)
        assert got.properties.headers == headers


# -- messages that are published, and their confirms


def ack(channel: int, tag: int, multiple: bool = False) -> bytes:
    return method(channel, spec.Basic.Ack(tag, multiple))


def acks(data: bytes) -> tuple[int, list[tuple[int, bool]]]:
    """How much of it was read, and what was told."""
    told: list[tuple[int, bool]] = []
    read = frames.acks(data, {1: lambda tag, multiple: told.append((tag, multiple))})
    return read, told


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE])
@pytest.mark.parametrize(("channel", "key"), [(1, "mail"), (65_535, "é" * 100)])
def test_a_message_is_what_pika_makes_of_it(size: int, channel: int, key: str) -> None:
    properties, body = Properties(delivery_mode=2, message_id="1", headers={"id": "1"}), b"a" * size

    pieces = frames.message(channel, "palermo", key, b"".join(properties.encode()), body, frame_max=FRAME_MAX)

    publish = spec.Basic.Publish(exchange="palermo", routing_key=key, mandatory=True)
    assert b"".join(pieces) == b"".join(parts(channel, publish, properties, body))


@given(
    tags=st.lists(st.tuples(st.integers(1, 2**63), st.booleans()), max_size=4),
    tail=st.sampled_from(
        [
            b"",
            ack(2, 9),
            frame.Heartbeat().marshal(),
            frame.Method(1, spec.Basic.Nack(9)).marshal(),
            frame.Method(1, spec.Basic.Return(312, "NO_ROUTE", "", "x")).marshal(),
        ]
    ),
)
def test_acks_are_read_up_to_the_first_other_frame_however_cut(tags: list[tuple[int, bool]], tail: bytes) -> None:
    stream = b"".join(ack(1, *each) for each in tags) + tail
    for cut in range(len(stream) + 1):
        whole = min(cut // 21, len(tags))

        assert acks(stream[:cut]) == (21 * whole, tags[:whole])


def test_an_ack_that_does_not_end_as_a_frame_is_left_to_pika() -> None:
    assert acks(ack(1, 5)[:-1] + b"\0") == (0, [])


# -- writing to the socket from outside the loop's thread: whole frames in their order, or nothing at all

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def connected(loop: asyncio.AbstractEventLoop, line: Line) -> AsyncioConnection:
    """A connection on the line that has sent its greeting."""
    unheard = dict.fromkeys(("on_open", "on_error", "on_close"), lambda *_: None)
    connection = AsyncioConnection(pika.ConnectionParameters(heartbeat=0), loop, **unheard)
    connection.connection_made(line)
    connection.flush()
    line.sent = b""
    return connection


def test_what_the_socket_does_not_take_goes_before_all_else(loop: asyncio.AbstractEventLoop, ends: Ends) -> None:
    ours, theirs = ends
    line = Line(ours)
    connection = connected(loop, line)
    data = bytes(range(256)) * 8_192
    assert connection.socket_lock.borrow()
    assert connection.idle

    connection.send([b"next"])
    connection.send_now(data)
    assert not connection.idle
    connection.socket_lock.release()
    loop.run_until_complete(asyncio.sleep(0))

    taken = len(data) + 4 - len(line.sent)
    assert 0 < taken < len(data)
    assert theirs.recv(taken, socket.MSG_WAITALL) + line.sent == data + b"next"
    assert not connection.idle
    connection.socket_lock.drop()


def test_a_lost_socket_is_left_to_the_connection(loop: asyncio.AbstractEventLoop, ends: Ends) -> None:
    ours, theirs = ends
    line = Line(ours)
    connection = connected(loop, line)
    theirs.close()

    assert connection.socket_lock.borrow()
    connection.send_now(b"lost")
    connection.socket_lock.release()
    connection.flush()
    assert line.sent == b"lost"

    connection.connection_lost(None)
    assert not connection.idle
    assert not connection.socket_lock.borrow()


def test_one_holds_it_at_a_time_and_the_connection_waits(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_locks, "_PATIENCE", 60.0)
    socket_lock = SocketLock()
    assert not socket_lock.borrow()
    socket_lock.fill(Line(ends[0]))
    assert socket_lock.borrow()
    assert not socket_lock.borrow()
    threading.Timer(0.05, socket_lock.release).start()

    assert socket_lock.take()
    socket_lock.release()
    socket_lock.drop()
    assert not socket_lock.borrow()
    assert socket_lock.take()


def test_a_socket_that_nobody_gives_back_ends_the_connection(
    loop: asyncio.AbstractEventLoop, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_locks, "_PATIENCE", 0.01)
    line = Line(ends[0])
    connection = connected(loop, line)
    assert connection.socket_lock.borrow()

    connection.send([b"behind it"])
    connection.flush()

    assert line.closed
    assert line.sent == b""
    assert not connection.socket_lock.take()
    connection.socket_lock.drop()


@pytest.mark.parametrize("extra", [{"sslcontext": object()}, {"socket": None}])
def test_only_a_plain_socket_is_written_to(extra: dict[str, Any], ends: Ends) -> None:
    socket_lock = SocketLock()
    socket_lock.fill(Line(ends[0], **extra))

    assert not socket_lock.borrow()


def test_nothing_is_sent_to_a_connection_that_is_given_up(loop: asyncio.AbstractEventLoop, ends: Ends) -> None:
    """Its transport may be closed by then, and raise at each write; its loop may end before it is said to be lost."""
    line = Line(ends[0])
    connection = connected(loop, line)

    connection.send([b"sent before"])
    connection.abort()
    connection.send([b"sent after"])
    connection.flush()

    assert (line.sent, line.closed) == (b"", True)
    assert not connection.socket_lock.borrow()
