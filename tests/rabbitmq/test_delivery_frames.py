"""The way of deliveries and acks round pika: the same as pika's own, however the stream is cut, whatever is between."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pika
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pika import exceptions, frame, spec

from palermo.brokers.rabbitmq.amqp import frames, transport
from palermo.brokers.rabbitmq.amqp.frames import Delivered
from palermo.brokers.rabbitmq.amqp.messages import Properties, read_properties
from palermo.brokers.rabbitmq.amqp.transport import AsyncioConnection
from palermo.contract.broker import SessionParameters, open_broker
from palermo.core.address import parse_url
from palermo.errors import BrokerRefused

FRAME_MAX = 4_096

#: What one body frame holds.
PIECE = FRAME_MAX - 8

_ABLE = {"capabilities": {"publisher_confirms": True, "basic.nack": True}}

HEARTBEAT = frame.Heartbeat().marshal()


class Line(asyncio.Transport):
    """The client's side of a line whose other side is a script; keeps what is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


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


def delivery(channel: int, tag: int, body: bytes, *, consumer: str = "", redelivered: bool = False) -> list[bytes]:
    """Its frames."""
    properties = Properties(headers={"id": f"{tag}", "n": tag}, message_id=f"{tag}", delivery_mode=2)
    said = spec.Basic.Deliver(consumer or f"tag-{channel}", tag, redelivered, "palermo", "mail")
    pieces = [body[start : start + PIECE] for start in range(0, len(body), PIECE)]
    return [
        method(channel, said),
        frame.Header(channel, len(body), properties).marshal(),
        *(frame.Body(channel, piece).marshal() for piece in pieces),
    ]


@dataclass
class Script:
    """What the broker says, frame by frame, in the order of the wire."""

    frames: list[bytes]

    @property
    def data(self) -> bytes:
        return b"".join(self.frames)


SIZES = st.sampled_from([0, 1, 100, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 1])


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    frames: list[bytes] = []
    alive = {1, 2}
    for tag in range(1, draw(st.integers(1, 8)) + 1):
        kind = draw(st.sampled_from(["message"] * 6 + ["confirm", "heartbeat", "blocked", "flow", "close", "stray"]))
        channel = draw(st.sampled_from(sorted(alive)))
        if kind == "message":
            again = draw(st.booleans())
            pieces = delivery(channel, tag, bytes([tag]) * draw(SIZES), redelivered=again)
            for number, piece in enumerate(pieces):
                frames.append(piece)
                if number < len(pieces) - 1 and draw(st.integers(0, 9)) == 0:
                    frames.append(HEARTBEAT if draw(st.booleans()) else method(3, spec.Basic.Ack(tag)))
        elif kind == "confirm":
            frames.append(method(3, spec.Basic.Ack(tag)))
        elif kind == "heartbeat":
            frames.append(HEARTBEAT)
        elif kind == "blocked":
            frames.append(method(0, spec.Connection.Blocked("memory")))
        elif kind == "flow":
            frames.append(method(channel, spec.Channel.Flow(False)))
        elif kind == "stray":
            frames += delivery(channel, tag, b"for nobody", consumer="another")
        elif len(alive) > 1:
            frames.append(method(channel, spec.Channel.Close(406, "enough", 0, 0)))
            alive.discard(channel)
    return Script(frames)


@given(script=scripts(), data=st.data())
@settings(max_examples=60, deadline=None)
def test_what_is_taken_directly_is_what_pika_would_have_given(
    script: Script, data: st.DataObject, loop: asyncio.AbstractEventLoop
) -> None:
    theirs, ours = Client(loop, directly=False), Client(loop, directly=True)
    theirs.hear(script.data)
    whole = script.data
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=12).map(sorted))
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        ours.hear(whole[start:end])
    assert ours.events == theirs.events
    assert ours.connection.bytes_received == theirs.connection.bytes_received
    assert ours.connection.frames_received == theirs.connection.frames_received


def test_a_stream_may_come_byte_by_byte(loop: asyncio.AbstractEventLoop) -> None:
    frames = [*delivery(1, 1, b"one"), HEARTBEAT, *delivery(2, 1, b""), *delivery(1, 2, b"x" * 5_000)]
    frames += [method(3, spec.Basic.Ack(1)), *delivery(1, 3, b"three"), method(1, spec.Basic.Cancel("tag-1"))]
    whole = b"".join(frames)
    theirs, ours = Client(loop, directly=False), Client(loop, directly=True)
    theirs.hear(whole)
    assert [event[0] for event in theirs.events].count("message") == 4
    for at in range(len(whole)):
        ours.hear(whole[at : at + 1])
    assert ours.events == theirs.events


@pytest.mark.parametrize("spoilt", [0, 1, 2])
def test_a_frame_that_does_not_end_where_it_says_is_an_error_as_in_pika(
    spoilt: int, loop: asyncio.AbstractEventLoop
) -> None:
    frames = delivery(1, 1, b"body")
    frames[spoilt] = frames[spoilt][:-1] + b"\x00"
    client = Client(loop, directly=True)
    with pytest.raises(exceptions.InvalidFrameError):
        client.hear(b"".join(frames))
    assert not [event for event in client.events if event[0] == "message"]


def test_bytes_that_are_no_frame_are_pikas_to_refuse(loop: asyncio.AbstractEventLoop) -> None:
    client = Client(loop, directly=True)
    client.hear(b"".join(delivery(1, 1, b"body")) + b"AMQP\x00\x00\x09\x01")
    assert client.events[-1][:3] == ("message", 1, 1)


def test_an_ack_is_pikas_byte_for_byte_and_keeps_its_place(loop: asyncio.AbstractEventLoop) -> None:
    assert frames.ack(7, 2**40) == method(7, spec.Basic.Ack(2**40, False))
    client = Client(loop, directly=True)
    sent, count = client.connection.bytes_sent, client.connection.frames_sent
    client.channels[0].basic_qos(prefetch_count=2)
    client.connection.ack(client.channels[0], 5)
    assert client.line.sent == method(1, spec.Basic.Qos(0, 2, False)) + frames.ack(1, 5)
    client.connection.ack(client.channels[1], 6)
    assert client.line.sent.endswith(frames.ack(2, 6))
    assert client.connection.bytes_sent - sent == len(client.line.sent)
    assert client.connection.frames_sent - count == 3


def test_acks_of_one_turn_leave_together_but_not_any_number_of_them(
    loop: asyncio.AbstractEventLoop,
) -> None:
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


def test_a_version_of_pika_that_was_not_tested_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tested = {"1.3.1": False, "1.3.2": True, "1.4.4": True, "1.5.0": False, "2.0.0b1": False, "?": False}
    assert {version: transport.is_tested(version) for version in tested} == tested
    monkeypatch.setattr(pika, "__version__", "1.5.0")

    with pytest.raises(BrokerRefused, match=r"pika 1\.5\.0 is installed, and Palermo works with 1\.3\.2 to 1\.4"):
        asyncio.run(open_broker(SessionParameters(address=parse_url("amqp://127.0.0.1:1"), exchange="palermo")))
