"""Writing to a connection's socket from outside its thread: whole frames in their order, or nothing at all."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from palermo.brokers.rabbitmq import pen as pens
from palermo.brokers.rabbitmq.pen import Pen
from palermo.brokers.rabbitmq.transport import AsyncioConnection


class Line(asyncio.Transport):
    """A transport on one end of a pair of sockets, which keeps what it has in its own buffer."""

    def __init__(self, end: socket.socket, **extra: Any) -> None:
        super().__init__({"socket": end} | extra)
        self.buffered: list[bytes] = []
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.buffered.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.buffered))

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def connected(loop: asyncio.AbstractEventLoop, line: Line) -> AsyncioConnection:
    """A connection on the line that has sent its greeting."""
    connection = AsyncioConnection(
        pika.ConnectionParameters(heartbeat=0),
        loop,
        on_open=lambda _: None,
        on_error=lambda *_: None,
        on_close=lambda *_: None,
    )
    connection.connection_made(line)
    connection.flush()
    line.buffered.clear()
    return connection


def test_what_the_socket_does_not_take_goes_behind_it_before_all_else(
    loop: asyncio.AbstractEventLoop, ends: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = ends
    line = Line(ours)
    connection = connected(loop, line)
    data = bytes(range(256)) * 8_192
    assert connection.pen.borrow()
    assert connection.idle

    connection.send_now(data)
    assert not connection.idle
    connection.pen.give_back()
    connection.send([b"next"])
    loop.run_until_complete(asyncio.sleep(0))

    (rest,) = line.buffered
    taken = len(data) + 4 - len(rest)
    assert 0 < taken < len(data)
    assert theirs.recv(taken, socket.MSG_WAITALL) + rest == data + b"next"
    assert not connection.idle
    connection.pen.drop()


def test_a_lost_socket_is_left_to_the_connection(
    loop: asyncio.AbstractEventLoop, ends: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = ends
    line = Line(ours)
    connection = connected(loop, line)
    theirs.close()

    assert connection.pen.borrow()
    connection.send_now(b"lost")
    connection.pen.give_back()
    connection.flush()
    assert line.buffered == [b"lost"]

    connection.connection_lost(None)
    assert not connection.idle
    assert not connection.pen.borrow()


def test_one_holds_it_at_a_time_and_only_the_connection_waits_for_it(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    pen = Pen()
    assert not pen.borrow()
    pen.fill(Line(ends[0]))
    assert pen.borrow()
    assert not pen.borrow()
    threading.Timer(0.05, pen.give_back).start()

    assert pen.take()
    pen.give_back()
    pen.drop()
    assert not pen.borrow()
    assert pen.take()


def test_a_pen_that_nobody_gives_back_ends_the_connection(
    loop: asyncio.AbstractEventLoop, ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pens, "_PATIENCE", 0.01)
    line = Line(ends[0])
    connection = connected(loop, line)
    assert connection.pen.borrow()

    connection.send([b"behind it"])
    connection.flush()

    assert line.aborted
    assert line.buffered == []
    assert not connection.pen.take()
    connection.pen.drop()


@pytest.mark.parametrize("extra", [{"sslcontext": object()}, {"socket": None}])
def test_only_a_plain_socket_is_written_to(extra: dict[str, Any], ends: tuple[socket.socket, socket.socket]) -> None:
    pen = Pen()
    pen.fill(Line(ends[0], **extra))

    assert not pen.borrow()
