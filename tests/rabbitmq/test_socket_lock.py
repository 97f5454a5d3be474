"""Writing to a connection's socket from outside its thread: whole frames in their order, or nothing at all."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from palermo.brokers.rabbitmq.amqp.transport import AsyncioConnection
from palermo.contract import socket_lock as socket_locks
from palermo.contract.socket_lock import SocketLock

Ends = tuple[socket.socket, socket.socket]


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
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


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
    loop: asyncio.AbstractEventLoop, ends: Ends
) -> None:
    ours, theirs = ends
    line = Line(ours)
    connection = connected(loop, line)
    data = bytes(range(256)) * 8_192
    assert connection.socket_lock.borrow()
    assert connection.idle

    connection.send_now(data)
    assert not connection.idle
    connection.socket_lock.give_back()
    connection.send([b"next"])
    loop.run_until_complete(asyncio.sleep(0))

    (rest,) = line.buffered
    taken = len(data) + 4 - len(rest)
    assert 0 < taken < len(data)
    assert theirs.recv(taken, socket.MSG_WAITALL) + rest == data + b"next"
    assert not connection.idle
    connection.socket_lock.drop()


def test_a_lost_socket_is_left_to_the_connection(loop: asyncio.AbstractEventLoop, ends: Ends) -> None:
    ours, theirs = ends
    line = Line(ours)
    connection = connected(loop, line)
    theirs.close()

    assert connection.socket_lock.borrow()
    connection.send_now(b"lost")
    connection.socket_lock.give_back()
    connection.flush()
    assert line.buffered == [b"lost"]

    connection.connection_lost(None)
    assert not connection.idle
    assert not connection.socket_lock.borrow()


def test_one_holds_it_at_a_time_and_only_the_connection_waits_for_it(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_locks, "_PATIENCE", 60.0)
    socket_lock = SocketLock()
    assert not socket_lock.borrow()
    socket_lock.fill(Line(ends[0]))
    assert socket_lock.borrow()
    assert not socket_lock.borrow()
    threading.Timer(0.05, socket_lock.give_back).start()

    assert socket_lock.take()
    socket_lock.give_back()
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

    assert line.aborted
    assert line.buffered == []
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

    assert (line.buffered, line.aborted) == ([], True)
    assert not connection.socket_lock.borrow()
