"""The questions of a worker on several queues, sent past pika: the same bytes, and the same answers, as by pika."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pika import exceptions, frame, spec

from palermo.brokers.rabbitmq.amqp import frames
from palermo.brokers.rabbitmq.amqp.frames import INCOMPLETE, Counted, Delivered, read_counted, read_got
from palermo.brokers.rabbitmq.amqp.messages import Properties, read_properties, unread
from tests.rabbitmq.test_delivery_frames import HEARTBEAT, PIECE, SIZES, Client, method

EMPTY = method(1, spec.Basic.GetEmpty(""))


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


def answer(tag: int, body: bytes, *, redelivered: bool = False) -> list[bytes]:
    """Its frames."""
    properties = Properties(headers={"n": tag}, message_id=f"{tag}", delivery_mode=2)
    pieces = [body[start : start + PIECE] for start in range(0, len(body), PIECE)]
    return [
        method(1, spec.Basic.GetOk(tag, redelivered, "palermo", "mail", 17)),
        frame.Header(1, len(body), properties).marshal(),
        *(frame.Body(1, piece).marshal() for piece in pieces),
    ]


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    frames: list[bytes] = []
    for tag in range(1, draw(st.integers(1, 8)) + 1):
        kind = draw(st.sampled_from(["job"] * 5 + ["empty"] * 3 + ["heartbeat", "blocked", "flow", "close"]))
        if kind == "job":
            pieces = answer(tag, bytes([tag]) * draw(SIZES), redelivered=draw(st.booleans()))
            for number, piece in enumerate(pieces):
                frames.append(piece)
                if number < len(pieces) - 1 and draw(st.integers(0, 9)) == 0:
                    frames.append(HEARTBEAT)
        elif kind == "empty":
            frames.append(EMPTY)
        elif kind == "heartbeat":
            frames.append(HEARTBEAT)
        elif kind == "blocked":
            frames.append(method(0, spec.Connection.Blocked("memory")))
        elif kind == "flow":
            frames.append(method(1, spec.Channel.Flow(False)))
        else:
            frames.append(method(1, spec.Channel.Close(404, "no queue", 60, 70)))
            break
    return b"".join(frames)


def same(ours: Asker, theirs: Asker) -> None:
    assert ours.events == theirs.events
    for asker in (ours, theirs):
        asker.connection.flush()
    assert ours.line.sent == theirs.line.sent
    for name in ("bytes_received", "frames_received", "bytes_sent", "frames_sent"):
        assert getattr(ours.connection, name) == getattr(theirs.connection, name), name


@given(whole=streams(), data=st.data())
@settings(max_examples=60, deadline=None)
def test_answers_are_what_pika_would_have_given_and_questions_what_it_would_have_sent(
    whole: bytes, data: st.DataObject, loop: asyncio.AbstractEventLoop
) -> None:
    theirs, ours = Asker(loop, directly=False), Asker(loop, directly=True)
    theirs.hear(whole)
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=12).map(sorted))
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        ours.hear(whole[start:end])
    same(ours, theirs)


def test_the_stream_of_answers_may_come_byte_by_byte(loop: asyncio.AbstractEventLoop) -> None:
    whole = b"".join([*answer(1, b"one"), EMPTY, HEARTBEAT, *answer(2, b""), *answer(3, b"x" * 5_000), EMPTY])
    theirs, ours = Asker(loop, directly=False), Asker(loop, directly=True)
    theirs.hear(whole)
    assert [event[0] for event in theirs.events] == ["got", "empty", "got", "got", "empty"]
    for at in range(len(whole)):
        ours.hear(whole[at : at + 1])
    same(ours, theirs)


def test_an_ack_and_the_next_question_leave_in_one_write(loop: asyncio.AbstractEventLoop) -> None:
    asker = Asker(loop, directly=True)
    writes: list[bytes] = []
    asker.line.write = lambda data: writes.append(bytes(data))  # type: ignore[method-assign]
    asker.hear(b"".join(answer(1, b"body")))
    assert writes == [method(1, spec.Basic.Ack(1)) + method(1, spec.Basic.Get(queue="mail"))]


@pytest.mark.parametrize("spoilt", [0, 1, 2])
def test_an_answer_that_does_not_end_where_it_says_is_an_error_as_in_pika(
    spoilt: int, loop: asyncio.AbstractEventLoop
) -> None:
    frames = answer(1, b"body")
    frames[spoilt] = frames[spoilt][:-1] + b"\x00"
    for spoilt_stream in (b"".join(frames), EMPTY[:-1] + b"\x00"):
        asker = Asker(loop, directly=True)
        with pytest.raises(exceptions.InvalidFrameError):
            asker.hear(spoilt_stream)
        assert not asker.events


def test_questions_are_pikas_byte_for_byte() -> None:
    assert frames.get(7, "mail") == method(7, spec.Basic.Get(queue="mail"))
    assert frames.count(7, "ü") == method(7, spec.Queue.Declare(queue="ü", passive=True))
    consume = spec.Basic.Consume(queue="mail", consumer_tag="t:mail", nowait=True)
    assert frames.consume(7, "mail", "t:mail") == method(7, consume)
    assert frames.cancel(7, "t:mail") == method(7, spec.Basic.Cancel("t:mail", nowait=True))


def test_a_count_is_incomplete_at_every_byte_but_the_last() -> None:
    counted = method(1, spec.Queue.DeclareOk("mail", 70_000, 3))
    for short_of in range(8, len(counted)):
        assert read_counted(counted[:short_of], 0, 1) == INCOMPLETE
    assert read_counted(b"..." + counted, 3, 1) == Counted(3 + len(counted), 70_000, 3)
    assert read_counted(b"".join(answer(9, b"body")), 0, 1) is None
    assert read_got(counted, 0, 1) is None


@pytest.mark.parametrize("id", ["one", "", None, "\xff" * 9, "q\\xff"])
@pytest.mark.parametrize("body", [b"", b"[1]"])
def test_what_was_got_goes_on_with_the_properties_that_it_came_with(id: str | None, body: bytes) -> None:
    headers = {"share": 2.0, "job-class": "shop.mail"}
    properties = Properties(headers=headers, message_id=id, delivery_mode=2, priority=3, app_id="theirs")
    frames = [method(1, spec.Basic.GetOk(7, False, "palermo", "mail", 0)), frame.Header(1, len(body), properties)]
    frames += [frame.Body(1, body)] if body else []
    data = b"before" + b"".join(one if isinstance(one, bytes) else one.marshal() for one in frames)
    found = read_got(data, 6, 1)
    assert isinstance(found, Delivered)

    got = unread(found, data)
    for _ in range(2):  # before its properties are read, and then
        assert (got.encoded, got.id) == (b"".join(properties.encode()), id)
        assert got.properties.headers == headers
