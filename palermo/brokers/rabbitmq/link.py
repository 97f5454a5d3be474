"""A connection and its channels with awaitable calls, and every end of them as Palermo's error."""

import asyncio
import socket
from collections.abc import Callable
from os import getpid
from typing import Any
from urllib.parse import quote, urlencode

import pika
from pika import exceptions, spec

from palermo.broker import Session
from palermo.brokers.rabbitmq.connecting import connect
from palermo.brokers.rabbitmq.together import together
from palermo.brokers.rabbitmq.translate import reply_code, translate
from palermo.brokers.rabbitmq.transport import AsyncioConnection
from palermo.core.address import Address
from palermo.core.values import dataclass
from palermo.errors import BrokerUnavailable, NotFound, PalermoError, UrlInvalid

#: Seconds that one call on an open channel may take before the session counts as lost. Purging or
#: deleting a queue of millions is the slowest there is.
CALL_TIMEOUT = 60.0


def fulfil(future: "asyncio.Future[Any]", result: object) -> None:
    """Give the future its result, unless who waited for it has gone."""
    if not future.done():
        future.set_result(result)


@dataclass(frozen=True, slots=True)
class Got:
    """One message as pika hands it out."""

    tag: int
    redelivered: bool
    properties: spec.BasicProperties
    body: bytes
    #: The exchange that it was published to, "" for the default one, and with which key.
    exchange: str = ""
    routing_key: str = ""
    #: How many were left behind it in the queue, where it was asked for.
    left: int = 0


def delivered(method: Any, properties: spec.BasicProperties, body: bytes, *, left: int = 0) -> Got:
    """A delivery, or the answer to a get."""
    return Got(method.delivery_tag, method.redelivered, properties, body, method.exchange, method.routing_key, left)


class Channel:
    """One AMQP channel. All its calls raise Palermo's errors; after any of them it may be closed."""

    def __init__(self, link: "Link", raw: Any) -> None:
        self.link = link
        #: pika's own channel.
        self.raw = raw
        #: Why it ended; None while it is open.
        self.error: PalermoError | None = None
        #: The broker's reply code when it closed the channel, else 0.
        self.code = 0
        self._waiting: set[asyncio.Future[Any]] = set()
        self._got: asyncio.Future[Got | None] | None = None
        self._closers: list[Callable[[], None]] = []
        raw.add_on_close_callback(self._on_close)
        raw.add_callback(self._on_get_empty, [spec.Basic.GetEmpty], False)

    @property
    def is_open(self) -> bool:
        return bool(self.raw.is_open)

    @property
    def missing(self) -> bool:
        """Whether it ended because what it asked about does not exist."""
        return isinstance(self.error, NotFound)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call this once when the channel ends, for whatever reason."""
        self._closers.append(callback)

    async def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The broker's answer to one of pika's methods that take a callback."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            method(*args, callback=lambda frame: fulfil(future, frame), **kwargs)
            async with asyncio.timeout(CALL_TIMEOUT):
                return await future
        except (exceptions.AMQPError, exceptions.ChannelError, TimeoutError) as error:
            raise self.error or self.link.translated(error) from error
        finally:
            self._waiting.discard(future)

    def send(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Have the broker do something it answers nothing to; if it cannot, the next `call` says so."""
        try:
            method(*args, **kwargs)
        except (exceptions.AMQPError, exceptions.ChannelError) as error:
            raise self.error or self.link.translated(error) from error

    async def get(self, queue: str) -> Got | None:
        """The first message of the queue, unacknowledged; None if none waits. One call at a time.

        A cancelled call first waits for its answer, and gives back what came.
        """
        future: asyncio.Future[Got | None] = asyncio.get_running_loop().create_future()
        self._got = future
        self._waiting.add(future)
        try:
            self.raw.basic_get(queue, self._on_got)
            return await asyncio.shield(future)
        except (exceptions.AMQPError, exceptions.ChannelError) as error:
            raise self.error or self.link.translated(error) from error
        except asyncio.CancelledError:
            await asyncio.wait({future})
            if future.exception() is None and (got := future.result()) is not None and self.is_open:
                self.raw.basic_nack(got.tag, requeue=True)
            raise
        finally:
            self._waiting.discard(future)

    def _on_got(self, _: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        if self._got is not None:
            fulfil(self._got, delivered(method, properties, body, left=method.message_count))

    def _on_get_empty(self, _: object) -> None:
        if self._got is not None:
            fulfil(self._got, None)

    def _on_close(self, _: object, reason: BaseException) -> None:
        self.code = reply_code(reason) if isinstance(reason, exceptions.ChannelClosedByBroker) else 0
        self.error = self.link.error or self.link.translated(reason)
        for future in self._waiting:
            if not future.done():
                future.set_exception(self.error)
        self._waiting.clear()
        closers, self._closers = self._closers, []
        for closer in closers:
            closer()

    async def close(self) -> None:
        """Close it; what was delivered on it and not settled goes back. May be called again."""
        if not self.is_open:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_close(lambda: fulfil(future, None))
        try:
            self.raw.close()
        except exceptions.AMQPError:
            return
        await future


class Link:
    """One connection to RabbitMQ. It never reconnects: when it is lost, `error` says why and all calls raise it."""

    def __init__(self, address: Address, where: str) -> None:
        self.address = address
        #: `host:port` of the node it is connected to.
        self.where = where
        self.error: PalermoError | None = None
        self.raw: AsyncioConnection
        self.lost = asyncio.Event()
        #: Set while the broker blocks publishers, by a memory or disk alarm.
        self.blocked = False

    def translated(self, error: BaseException) -> PalermoError:
        return translate(error, self.where, user=self.address.username, vhost=self.address.vhost)

    async def channel(self) -> Channel:
        """A new channel. Raises BrokerUnavailable when the link is lost."""
        if self.error is not None:
            raise self.error
        opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            raw = self.raw.channel(on_open_callback=lambda made: fulfil(opened, made))
        except exceptions.AMQPError as error:
            raise self.error or self.translated(error) from error
        lost = asyncio.ensure_future(self.lost.wait())
        try:
            await asyncio.wait({opened, lost}, return_when=asyncio.FIRST_COMPLETED, timeout=CALL_TIMEOUT)
        finally:
            lost.cancel()
        if not opened.done():
            raise self.error or BrokerUnavailable(f"RabbitMQ at {self.where} did not open a channel in time.")
        return Channel(self, raw)

    async def close(self) -> None:
        """End the connection with AMQP's farewell, or without it where that takes a second, or all our time."""
        if self.error is not None:
            return
        try:
            self.raw.close()
            async with asyncio.timeout(1.0):
                await self.lost.wait()
        except (exceptions.AMQPError, TimeoutError):
            self.raw.abort()
        except asyncio.CancelledError:
            # Whoever still waits for an answer must hear that none will come.
            self.raw.abort()
            raise

    def _on_close(self, error: Exception) -> None:
        self.error = self.translated(error)
        if isinstance(error, exceptions.ConnectionClosedByClient):
            self.error = BrokerUnavailable(f"the session with RabbitMQ at {self.where} has been closed.")
        self.lost.set()

    @property
    def version(self) -> str:
        """What the server says of itself, `3.10.8`."""
        return str((self.raw.server_properties or {}).get("version", "?"))


async def open_link(session: Session, purpose: str, *, heartbeat: int | None = None) -> Link:
    """A connection to the first host of the address that takes us, within the session's timeout over all of them.

    `heartbeat` is asked for in seconds where the address says nothing of it.

    Raises BrokerRefused when a host refuses our credentials or virtual host (another host of the
    same cluster would too), else BrokerUnavailable naming every host that was tried.
    """
    deadline = asyncio.get_running_loop().time() + session.timeout
    tried: list[PalermoError] = []
    hosts = session.address.hosts
    for number, (host, port) in enumerate(hosts):
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            break
        where = f"{host}:{port}"
        link = Link(session.address, where)
        try:
            link.raw = await connect(
                _parameters(session, host, port, purpose, heartbeat),
                timeout=left / (len(hosts) - number),
                on_close=link._on_close,
            )
        except (exceptions.AMQPError, OSError, TimeoutError) as error:
            refused = link.translated(error)
            if not isinstance(refused, BrokerUnavailable):
                raise refused from error
            tried.append(refused)
            continue
        link.raw.add_on_connection_blocked_callback(lambda *_, link=link: setattr(link, "blocked", True))
        link.raw.add_on_connection_unblocked_callback(lambda *_, link=link: setattr(link, "blocked", False))
        return link
    raise BrokerUnavailable(" ".join(map(str, tried)) or f"RabbitMQ at {hosts[0][0]} did not answer in time.")


async def open_links(session: Session, count: int) -> list[Link]:
    """So many connections at the same time, or none. Raises as `open_link`."""
    tasks = [asyncio.ensure_future(open_link(session, session.name)) for _ in range(count)]
    try:
        await together(*tasks)
    except BaseException:
        for task in tasks:
            if not task.cancelled() and task.exception() is None:
                task.result().raw.abort()
        raise
    return [task.result() for task in tasks]


def _parameters(
    session: Session, host: str, port: int, purpose: str, heartbeat: int | None
) -> pika.ConnectionParameters:
    """pika's own reading of the URL, so that its query takes the names of pika's documentation."""
    address = session.address
    netloc = f"[{host}]" if ":" in host else quote(host, safe="")
    credentials = f"{quote(address.username, safe='')}:{quote(address.password, safe='')}"
    query = urlencode(address.options)
    url = f"{address.scheme}://{credentials}@{netloc}:{port}/{quote(address.vhost, safe='')}" + (
        f"?{query}" if query else ""
    )
    try:
        parameters = pika.URLParameters(url)
    except (ValueError, TypeError, SyntaxError, OSError) as error:
        raise UrlInvalid(
            f"an option in the query of the broker URL cannot be used: {_without(str(error), address.password)}."
            f" Given: {', '.join(name for name, _ in address.options)}."
        ) from None
    if heartbeat is not None and "heartbeat" not in dict(address.options):
        parameters.heartbeat = heartbeat
    properties = dict(parameters.client_properties or {})
    properties.setdefault("connection_name", f"palermo {purpose} pid:{getpid()}@{socket.gethostname()}")
    parameters.client_properties = properties
    return parameters


def _without(text: str, password: str) -> str:
    return text.replace(password, "***") if password else text
