"""One connection to Redis that pipelines any number of concurrent calls, and the translation of its errors.

Redis answers commands in order, so each call waits only for its own answer, and cancelling a call doesn't affect
others. A lost connection is never reopened: from then on every call raises BrokerUnavailable.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import hiredis
import redis.asyncio.connection as library
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from palermo.contract.socket_lock import SocketLock
from palermo.contract.trouble import Trouble
from palermo.errors import BrokerBlocked, BrokerError, BrokerRefused, BrokerUnavailable, PublishRefused

#: Why a server stores nothing now, and the remedy, by the start of Redis's error text.
_TROUBLES = {
    "OOM": (
        "stores nothing: its memory is full (maxmemory)",
        "Raise maxmemory, or let workers empty the queues. `redis-cli INFO memory` shows the memory in use.",
    ),
    "MISCONF": (
        "stores nothing: it cannot write its snapshot or its log to the disk (MISCONF)",
        "Check its log, then free disk space or repair the folder that `redis-cli CONFIG GET dir` shows.",
    ),
    "LOADING": (
        "is loading its data from the disk (LOADING)",
        "Wait until it has finished. `redis-cli INFO persistence` shows the progress.",
    ),
    "READONLY": (
        "is a replica and stores nothing (READONLY)",
        "Name the primary server in the URL, or its Sentinels (redis+sentinel://).",
    ),
    "NOREPLICAS": (
        "stores nothing: too few of its replicas answer (min-replicas-to-write)",
        "Start the replicas; `redis-cli INFO replication` lists those that answer.",
    ),
}

#: Errors of a server that stores nothing for any client, so that a new session would not help.
_FULL = ("OOM", "MISCONF")

#: Errors of a server that rejects our login. redis-py raises some of these as connection errors.
_NO_ENTRY = ("NOAUTH", "WRONGPASS", "NOPERM", "no permissions", "DENIED", "invalid username-password", "Authentication")

#: Errors of a server that can't serve us now: it is the wrong one, busy, or has too few replicas.
_NOT_NOW = ("MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY ", "UNKILLABLE")


def translated(server: str, error: BaseException) -> BrokerError:
    """Palermo's error for an error of redis-py or the system. `server` is the address to display."""
    text = str(error).rstrip(".")
    if isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError) or _begins(text, _NO_ENTRY):
        sentence = text if text.endswith("?") else f"{text}."
        return BrokerRefused(
            f"Redis at {server} refuses access: {sentence} Check the user, its password and its permissions."
        )
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return BrokerRefused(f"the certificate of Redis at {server} is not trusted: {text}. Check ssl_ca_certs.")
    if (trouble := trouble_of(server, error)) is not None:
        return (PublishRefused if _kind(error) in _FULL else BrokerBlocked)(trouble.text)
    if isinstance(error, AskError):
        return BrokerUnavailable(
            f"Redis at {server} is not the cluster node that stores Palermo's keys, or is moving them."
        )
    if isinstance(error, ClusterDownError) or _begins(text, _NOT_NOW):
        return BrokerUnavailable(f"Redis at {server} cannot serve requests now: {text}")
    if _begins(text, ("WRONGTYPE",)):
        return BrokerRefused(
            f"Redis at {server}: another program has overwritten one of Palermo's keys with a value of another type."
            " `palermo doctor` shows which."
        )
    if isinstance(error, ResponseError):
        return BrokerRefused(f"Redis at {server} refuses a command: {text}")
    return BrokerUnavailable(f"Redis at {server} does not answer: {text or type(error).__name__}")


def trouble_of(server: str, error: BaseException) -> Trouble | None:
    """The problem that an error from Redis indicates."""
    kind = _kind(error)
    if not kind:
        return None
    cause, advice = _TROUBLES[kind]
    return Trouble(f"Redis at {server} {cause}", advice)


def _kind(error: BaseException) -> str:
    """The key in _TROUBLES for an error from Redis, or "". redis-py strips some prefixes."""
    for known, kind in ((OutOfMemoryError, "OOM"), (BusyLoadingError, "LOADING"), (ReadOnlyError, "READONLY")):
        if isinstance(error, known):
            return kind
    return next((kind for kind in _TROUBLES if _begins(str(error), (kind,))), "")


def _begins(text: str, beginnings: Iterable[str]) -> bool:
    # An error inside a script starts with the name of the script; in Redis 6 also with a sign.
    return any(text.startswith(one) or f" {one}" in text[:200] or f" -{one}" in text[:200] for one in beginnings)


async def _disconnect(raw: library.AbstractConnection) -> None:
    """Close a connection without pending calls."""
    if raw._writer is not None and raw._writer.transport.get_extra_info("sslcontext") is not None:
        # uvloop would wait for TLS's close_notify, but a client's event loop ends before that.
        raw._writer.transport.abort()
    await raw.disconnect(nowait=True)


class _Reader(asyncio.Protocol):
    """Parses incoming data as it arrives, in place of redis-py's reader with its task and stream.

    benchmarks.idle latency: p25 1.89 ms, 2.05 without. Names with a leading underscore are redis-py's, the same in 5.1,
    our minimum, and in 8.1.
    """

    def __init__(
        self,
        raw: library.AbstractConnection,
        received: Callable[[Any], None],
        ended: Callable[[Exception], None],
    ) -> None:
        """`received` is called with each answer, message or error; `ended` with the reason for the end."""
        self._reader = hiredis.Reader(replyError=raw._parser.parse_error)
        self._received = received
        self._ended = ended
        raw._writer.transport.set_protocol(self)  # type: ignore[union-attr]

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (answer := self._reader.gets()) is not False:
            self._received(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended(exc or ConnectionError("Connection closed by server."))


class Connection:
    """A connection, opened by `connect`."""

    def __init__(self, raw: library.AbstractConnection, server: str) -> None:
        self._raw = raw
        self._server = server
        #: The transport of redis-py's own writer; see _Reader.
        self._transport: asyncio.WriteTransport = raw._writer.transport  # type: ignore[union-attr]
        self._socket_lock = SocketLock()
        self._socket_lock.fill(self._transport)
        #: Pending answers, in the order in which the commands were sent.
        self._waiting: deque[asyncio.Future[Any]] = deque()
        #: Unsent commands with their futures; None for the rest of a command that another thread has begun to send.
        self._unsent: list[tuple[bytes, asyncio.Future[Any] | None]] = []
        self._loop = asyncio.get_running_loop()
        #: Why the connection was lost.
        self.lost: asyncio.Future[BrokerError] = self._loop.create_future()
        _Reader(raw, self._received, self._ended)

    def begin(self, *command: Any) -> "asyncio.Future[Any]":
        """Send a command. The future gets its answer, or fails with a redis-py error or BrokerUnavailable."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.lost.done():
            future.set_exception(BrokerUnavailable(str(self.lost.result())))
            return future
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append((hiredis.pack_command(command), future))
        return future

    def try_begin(self, answered: Callable[["asyncio.Future[Any]"], None], *command: Any) -> bool:
        """Like `begin`, for another thread, which writes directly. The session's thread calls `answered`.

        Returns False, with nothing sent, if another write is in progress or the connection is lost.
        """
        data = hiredis.pack_command(command)
        future: asyncio.Future[Any] = self._loop.create_future()
        future.add_done_callback(answered)
        # If an exception interrupts the following lines, the lock stays taken and the connection ends (SocketLock).
        if not self._socket_lock.borrow():
            return False
        begun = not (self.lost.done() or self._unsent or self._transport.get_write_buffer_size())
        if begun:
            self._waiting.append(future)
            sent = self._socket_lock.write(data)
            if sent < len(data):
                self._unsent.insert(0, (data[sent:], None))
                with contextlib.suppress(RuntimeError):  # the loop has ended; waiting callers get an error anyway
                    self._loop.call_soon_threadsafe(self._send)
        self._socket_lock.release()
        return begun

    async def call(self, *command: Any) -> Any:
        """Send a command, return its answer. Raises BrokerUnavailable, BrokerRefused, PublishRefused, NoScriptError."""
        try:
            return await self.begin(*command)
        except NoScriptError:
            raise
        except RedisError as error:
            raise translated(self._server, error) from error

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        self._lose(BrokerUnavailable(f"the session with Redis at {self._server} is closed. Open another."))
        await _disconnect(self._raw)

    def _send(self) -> None:
        if not self._unsent or self.lost.done():
            return
        if not self._socket_lock.take():
            self._lose(BrokerUnavailable(f"the session with Redis at {self._server} was interrupted during a command."))
            return
        unsent, self._unsent = self._unsent, []
        self._waiting += [future for _, future in unsent if future is not None]
        self._transport.write(b"".join([data for data, _ in unsent]))
        self._socket_lock.release()

    def _received(self, answer: Any) -> None:
        if isinstance(answer, ConnectionError | AskError | ReadOnlyError):
            # The server is closing the connection, or is no longer the primary.
            self._ended(answer)
        if not self._waiting:
            return
        future = self._waiting.popleft()
        if future.done():
            return
        if isinstance(answer, RedisError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def _ended(self, error: Exception) -> None:
        self._lose(translated(self._server, error))

    def _lose(self, error: BrokerError) -> None:
        if not self.lost.done():
            self.lost.set_result(error)
            self._socket_lock.drop()
        unsent, self._unsent = self._unsent, []
        waiting = [*self._waiting, *(future for _, future in unsent if future is not None)]
        self._waiting.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(type(error)(str(error)))
                future.exception()  # mark it as retrieved: its caller may have been cancelled


class Messages:
    """A connection that subscribes to channels and calls a function for each message."""

    def __init__(self, raw: library.AbstractConnection, server: str) -> None:
        self._raw = raw
        self._server = server
        self._callbacks: dict[bytes, list[Callable[[bytes], None]]] = {}
        self._subscribing: dict[bytes, asyncio.Future[None]] = {}
        self._confirmed: deque[asyncio.Future[None]] = deque()
        self.lost: asyncio.Future[BrokerError] = asyncio.get_running_loop().create_future()
        self._lock = asyncio.Lock()
        _Reader(raw, self._received, self._ended)

    async def subscribe(self, channel: str, callback: Callable[[bytes], None]) -> None:
        """Call the function for each message of the channel; return when the subscription is active."""
        name = channel.encode()
        self._callbacks.setdefault(name, []).append(callback)
        if name not in self._subscribing:
            self._subscribing[name] = asyncio.ensure_future(self._command("SUBSCRIBE", channel))
        await asyncio.shield(self._subscribing[name])

    async def unsubscribe(self, channel: str, callback: Callable[[bytes], None]) -> None:
        callbacks = self._callbacks.get(channel.encode(), [])
        if callback in callbacks:
            callbacks.remove(callback)
        if not callbacks and self._callbacks.pop(channel.encode(), None) is not None:
            del self._subscribing[channel.encode()]
            if not self.lost.done():
                await self._command("UNSUBSCRIBE", channel)

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        self._lose(BrokerUnavailable(f"the session with Redis at {self._server} is closed. Open another."))
        await _disconnect(self._raw)

    async def _command(self, *command: str) -> None:
        if self.lost.done():
            raise BrokerUnavailable(str(self.lost.result()))
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            async with self._lock:
                self._confirmed.append(confirmed)
                await self._raw.send_command(*command, check_health=False)
            await confirmed
        except (RedisError, OSError) as error:
            raise translated(self._server, error) from error

    def _received(self, answer: Any) -> None:
        if isinstance(answer, RedisError):
            self._ended(answer)
            return
        kind, channel, *rest = answer
        if kind == b"message":
            for callback in tuple(self._callbacks.get(channel, ())):
                callback(rest[0])
        elif self._confirmed and not (confirmed := self._confirmed.popleft()).done():
            confirmed.set_result(None)

    def _ended(self, error: Exception) -> None:
        self._lose(translated(self._server, error))

    def _lose(self, error: BrokerError) -> None:
        if not self.lost.done():
            self.lost.set_result(error)
        while self._confirmed:
            if not (confirmed := self._confirmed.popleft()).done():
                confirmed.set_exception(type(error)(str(error)))
        for callbacks in tuple(self._callbacks.values()):
            for callback in tuple(callbacks):
                callback(b"")
