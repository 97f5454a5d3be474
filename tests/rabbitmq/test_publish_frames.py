"""Messages published as bytes of our own, against pika's reading of them; and acks, wherever the stream is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import frame, spec

from palermo.brokers.rabbitmq.amqp import frames
from palermo.brokers.rabbitmq.amqp.messages import Properties

FRAME_MAX = 4_096
ROOM = FRAME_MAX - frames.OVERHEAD


def by_pika(channel: int, exchange: str, key: str, properties: spec.BasicProperties, body: bytes) -> bytes:
    publish = spec.Basic.Publish(exchange=exchange, routing_key=key, mandatory=True)
    pieces = [body[start : start + ROOM] for start in range(0, len(body), ROOM)]
    parts = [frame.Method(channel, publish), frame.Header(channel, len(body), properties)]
    return b"".join(part.marshal() for part in [*parts, *(frame.Body(channel, piece) for piece in pieces)])


def ack(channel: int, tag: int, multiple: bool = False) -> bytes:
    marshalled: bytes = frame.Method(channel, spec.Basic.Ack(tag, multiple)).marshal()
    return marshalled


def acks(data: bytes) -> tuple[int, list[tuple[int, bool]]]:
    """How much of it was read, and what was told."""
    told: list[tuple[int, bool]] = []
    read = frames.acks(data, {1: lambda tag, multiple: told.append((tag, multiple))})
    return read, told


@pytest.mark.parametrize("size", [0, 1, ROOM - 1, ROOM, ROOM + 1, 2 * ROOM, 3 * ROOM + 7])
@pytest.mark.parametrize(("channel", "key"), [(1, "mail"), (65_535, "é" * 100)])
def test_a_message_is_what_pika_makes_of_it(size: int, channel: int, key: str) -> None:
    properties = Properties(content_type="application/json", delivery_mode=2, message_id="1", headers={"id": "1"})
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]

    pieces = frames.message(channel, "palermo", key, b"".join(properties.encode()), body, frame_max=FRAME_MAX)

    assert b"".join(pieces) == by_pika(channel, "palermo", key, properties, body)


def test_a_name_that_amqp_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="255"):
        frames.message(1, "", "x" * 256, b"\0\0", b"", frame_max=FRAME_MAX)


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
def test_acks_are_told_up_to_the_first_frame_that_is_none_wherever_the_stream_is_cut(
    tags: list[tuple[int, bool]], tail: bytes
) -> None:
    stream = b"".join(ack(1, *each) for each in tags) + tail
    for cut in range(len(stream) + 1):
        whole = min(cut // 21, len(tags))

        assert acks(stream[:cut]) == (21 * whole, tags[:whole])


def test_an_ack_that_does_not_end_as_a_frame_is_left_to_pika() -> None:
    assert acks(ack(1, 5)[:-1] + b"\0") == (0, [])
