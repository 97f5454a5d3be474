"""One connection with Redis, over which any number of calls are under way at once, and what its errors mean.

Redis answers in the order of the commands. So each call waits for its own answer alone, and a call that is cancelled
disturbs no other. The connection is never made again: once it is lost, every call raises BrokerUnavailable.
"""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import redis.asyncio.connection as library
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from palermo.core.address import Address
from palermo.errors import BrokerError, BrokerRefused, BrokerUnavailable, PublishRefused, UrlInvalid

#: The parameters that the query of an address may have, and how they are read. They have redis-py's own names.
_OPTIONS: dict[str, Callable[[str], Any]] = {
    "db": int,
    "socket_connect_timeout": float,
    "ssl_ca_certs": str,
    "ssl_ca_path": str,
    "ssl_certfile": str,
    "ssl_keyfile": str,
    "ssl_cert_reqs": str,
    "ssl_check_hostname": lambda text: text.lower() in ("1", "true", "yes"),
}

#: Those of them that name files.
_FILES = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})

#: What a text that Redis answers with begins with if it stores nothing now, or never: a full memory, a disk that cannot
#: be written, too few replicas.
_STORES_NOTHING = ("OOM", "MISCONF", "NOREPLICAS")

#: The same if it does not let us in. redis-py raises some of these as errors of the connection.
_NO_ENTRY = ("NOAUTH", "WRONGPASS", "NOPERM", "DENIED", "invalid username-password", "Authentication required")

#: The same for a server that is not, or not yet, the one to ask.
_NOT_NOW = ("LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "BUSY ", "UNKILLABLE", "MOVED", "ASK ")


def translated(server: str, error: BaseException) -> BrokerError:
    """Our own error for one of redis-py's, or of the system's. `server` is the address, for people."""
    text = str(error).rstrip(".")
    if isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError) or _begins(text, _NO_ENTRY):
        return BrokerRefused(
            f"Redis at {server} refuses us: {text}. Check user and password, and what the user may do."
        )
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return BrokerRefused(f"the certificate of Redis at {server} is not trusted: {text}. Look at ssl_ca_certs.")
    if isinstance(error, OutOfMemoryError) or _begins(text, _STORES_NOTHING):
        return PublishRefused(
            f"Redis at {server} stores nothing: {text}. Look at its memory, its disk and its replicas."
        )
    if isinstance(error, ReadOnlyError | BusyLoadingError | ClusterDownError) or _begins(text, _NOT_NOW):
        return BrokerUnavailable(f"Redis at {server} cannot serve us now: {text}")
    if isinstance(error, ResponseError):
        return BrokerRefused(f"Redis at {server} refuses a command: {text}")
    return BrokerUnavailable(f"Redis at {server} does not answer: {text or type(error).__name__}")


def _begins(text: str, beginnings: Iterable[str]) -> bool:
    # An error inside a script has the name of the script around it.
    return any(text.startswith(one) or f" {one}" in text[:200] for one in beginnings)


class Connection:
    """A connection, opened by `connect`."""

    def __init__(self, raw: library.AbstractConnection, server: str) -> None:
        self._raw = raw
        self._server = server
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._unsent: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._to_send = asyncio.Event()
        #: Why the connection is lost.
        self.lost: asyncio.Future[BrokerError] = self._loop.create_future()
        self._tasks = [self._loop.create_task(self._send()), self._loop.create_task(self._receive())]

    def begin(self, *command: Any) -> "asyncio.Future[Any]":
        """Send a command; the future is its answer, or fails with one of redis-py's errors or BrokerUnavailable."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.lost.done():
            future.set_exception(BrokerUnavailable(str(self.lost.result())))
            return future
        self._unsent += self._raw.pack_command(*command)
        self._waiting.append(future)
        self._to_send.set()
        return future

    async def call(self, *command: Any) -> Any:
        """The answer to a command. Raises BrokerUnavailable, BrokerRefused, PublishRefused; NoScriptError."""
        try:
            return await self.begin(*command)
        except NoScriptError:
            raise
        except RedisError as error:
            raise translated(self._server, error) from error

    async def close(self) -> None:
        """Close it. May be called again."""
        self._lose(BrokerUnavailable(f"the session with Redis at {self._server} is closed. Open another."))
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        with contextlib.suppress(RedisError, OSError):
            await self._raw.disconnect()

    async def _send(self) -> None:
        try:
            while True:
                await self._to_send.wait()
                self._to_send.clear()
                unsent, self._unsent = self._unsent, []
                await self._raw.send_packed_command([b"".join(unsent)], check_health=False)
        except (RedisError, OSError) as error:
            self._lose(translated(self._server, error))

    async def _receive(self) -> None:
        try:
            while True:
                try:
                    answer, failed = await self._raw.read_response(disable_decoding=True), None
                except ResponseError as error:
                    answer, failed = None, error
                future = self._waiting.popleft()
                if future.done():
                    continue
                if failed is None:
                    future.set_result(answer)
                else:
                    future.set_exception(failed)
        except (RedisError, OSError, IndexError) as error:
            self._lose(translated(self._server, error))

    def _lose(self, error: BrokerError) -> None:
        if not self.lost.done():
            self.lost.set_result(error)
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(type(error)(str(error)))
                future.exception()  # its caller may have been cancelled: then nobody else looks at it


class Messages:
    """A connection that subscribes to channels, and calls a function for each message."""

    def __init__(self, raw: library.AbstractConnection, server: str) -> None:
        self._raw = raw
        self._server = server
        self._callbacks: dict[bytes, list[Callable[[bytes], None]]] = {}
        self._subscribing: dict[bytes, asyncio.Future[None]] = {}
        self._confirmed: deque[asyncio.Future[None]] = deque()
        self.lost: asyncio.Future[BrokerError] = asyncio.get_running_loop().create_future()
        self._lock = asyncio.Lock()
        self._task = asyncio.get_running_loop().create_task(self._receive())

    async def subscribe(self, channel: str, callback: Callable[[bytes], None]) -> None:
        """Call the function for each message of the channel from now on; returns once no message is missed."""
        name = channel.encode()
        self._callbacks.setdefault(name, []).append(callback)
        if name not in self._subscribing:
            self._subscribing[name] = asyncio.ensure_future(self._command("SUBSCRIBE", channel))
        await asyncio.shield(self._subscribing[name])

    async def unsubscribe(self, channel: str, callback: Callable[[bytes], None]) -> None:
        """Call the function no more."""
        callbacks = self._callbacks.get(channel.encode(), [])
        if callback in callbacks:
            callbacks.remove(callback)
        if not callbacks and self._callbacks.pop(channel.encode(), None) is not None:
            del self._subscribing[channel.encode()]
            if not self.lost.done():
                await self._command("UNSUBSCRIBE", channel)

    async def close(self) -> None:
        """Close it. May be called again."""
        self._lose(BrokerUnavailable(f"the session with Redis at {self._server} is closed. Open another."))
        self._task.cancel()
        await asyncio.wait({self._task})
        with contextlib.suppress(RedisError, OSError):
            await self._raw.disconnect()

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

    async def _receive(self) -> None:
        try:
            while True:
                kind, channel, *rest = await self._raw.read_response(disable_decoding=True)
                if kind == b"message":
                    for callback in tuple(self._callbacks.get(channel, ())):
                        callback(rest[0])
                elif self._confirmed and not (confirmed := self._confirmed.popleft()).done():
                    confirmed.set_result(None)
        except (RedisError, OSError) as error:
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


async def connect(address: Address, timeout: float, name: str) -> library.AbstractConnection:
    """A connection of redis-py to the first host that lets us in.

    Raises UrlInvalid, BrokerUnavailable, BrokerRefused.
    """
    options = _options(address)
    common: dict[str, Any] = {
        "username": address.username or None,
        "password": address.password or None,
        "client_name": name,
        "protocol": 2,
        "socket_timeout": None,
        "socket_connect_timeout": timeout,
        **options,
    }
    failed: BrokerError = BrokerUnavailable(f"Redis at {address} has no host.")
    for host, port in address.hosts or (("", 0),):
        raw: library.AbstractConnection
        if address.path:
            raw = library.UnixDomainSocketConnection(path=address.path, **common)
        elif address.scheme == "rediss":
            raw = library.SSLConnection(host=host, port=port, **common)
        else:
            raw = library.Connection(host=host, port=port, **common)
        try:
            async with asyncio.timeout(timeout):
                await raw.connect()  # type: ignore[no-untyped-call]
            return raw
        except TimeoutError:
            failed = BrokerUnavailable(f"Redis at {address} did not answer within {timeout:g} s.")
        except (RedisError, OSError) as error:
            failed = translated(str(address), error)
        with contextlib.suppress(RedisError, OSError):
            await raw.disconnect(nowait=True)
    raise failed


def _options(address: Address) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if address.vhost.strip("/"):
        found["db"] = _read("db", address.vhost.strip("/"))
    for name, text in address.options:
        if name not in _OPTIONS or (name.startswith("ssl_") and address.scheme != "rediss"):
            known = ", ".join(_OPTIONS)
            raise UrlInvalid(f"parameter {name!r} of the broker URL means nothing to Redis; known are {known}.")
        if name in _FILES and not os.path.isfile(text):
            raise UrlInvalid(f"parameter {name} of the broker URL names {text!r}, and there is no such file.")
        found[name] = _read(name, text)
    return found


def _read(name: str, text: str) -> Any:
    try:
        return _OPTIONS[name](text)
    except ValueError:
        what = "database" if name == "db" else f"parameter {name}"
        raise UrlInvalid(f"{what} {text!r} of the broker URL is no number; write redis://host:6379/0.") from None
