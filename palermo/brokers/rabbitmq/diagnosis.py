"""What may be wrong with a RabbitMQ, tried on a queue of the doctor's own that is removed in the end.

Publishing is tried on a connection of its own: under an alarm the server reads no more from a
connection that has published, and what is made here must still be removed.
"""

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version

from pika import spec

from palermo.broker import Session
from palermo.brokers.rabbitmq import versions
from palermo.brokers.rabbitmq.events_diagnosis import look_at_events
from palermo.brokers.rabbitmq.link import Channel, Link, open_link
from palermo.brokers.rabbitmq.publisher import Publisher
from palermo.brokers.rabbitmq.registry import Registry
from palermo.brokers.rabbitmq.sweep import take
from palermo.brokers.rabbitmq.translate import NOT_FOUND, PRECONDITION_FAILED
from palermo.brokers.rabbitmq.wire import PERSISTENT
from palermo.brokers.rabbitmq.wiring import Wiring
from palermo.core.topology import CLASSIC, FAILED_QUEUE, QUEUE_TYPES, amqp_queue, internal, is_failed
from palermo.errors import PalermoError
from palermo.findings import Finding

#: Seconds that one publish may take before something is wrong.
_PATIENCE = 2.0

#: Jobs of a queue without priorities that are looked at for one.
_FIRST_FEW = 10

#: Milliseconds after which the server removes the doctor's queue, should the doctor die.
_EXPIRES_MS = 60_000

#: Seconds by which a clock may be wrong: instants on the wire are whole seconds.
_CLOCK = 2.0

_PERMISSIONS = "rabbitmqctl set_permissions -p VHOST USER '.*' '.*' '.*', or the patterns of docs/deploying.md."

_DIFFERS = re.compile(r"inequivalent arg '(?P<name>[^']+)'.*received (?P<ours>.+) but current is (?P<theirs>.+)$")

#: Differences from our own queues that lose jobs.
_LOSING = {
    "durable": "its jobs are lost when the server restarts",
    "auto_delete": "it is deleted with its last worker, jobs and all",
    "exclusive": "it is deleted with the connection that made it",
    "x-message-ttl": "jobs that wait longer are thrown away",
    "x-expires": "it is deleted when nobody uses it, jobs and all",
    "x-max-length": "jobs beyond that many are thrown away or refused",
    "x-max-length-bytes": "jobs beyond that size are thrown away or refused",
}


class Diagnosis:
    """One look at one server, through a session's link."""

    def __init__(self, session: Session, link: Link, registry: Registry) -> None:
        self._session = session
        self._exchange = session.exchange
        self._kind = session.queue_type
        self._link = link
        self._registry = registry
        self._found: list[Finding] = []
        self._has_exchange = False

    async def run(self) -> list[Finding]:
        properties = self._link.raw.server_properties or {}
        product = str(properties.get("product", "RabbitMQ"))
        self._found = [
            Finding.ok("connection", f"to {self._link.where} as user {self._link.address.username}"),
            versions.server(self._link.version, product),
            versions.client(version("pika")),
            versions.heartbeat(int(self._link.raw.params.heartbeat or 0)),
            versions.consumer_timeout(self._link.version),
            Finding.ok("plugins", "none is needed"),
        ]
        async with self._noting("exchange"):
            await self._look_at_exchange()
        names = {FAILED_QUEUE}
        async with self._noting("registry"):
            found = await self._registry.names(self._link)
            names |= found
            self._found.append(Finding.ok("registry", f"readable, {len(found)} queue(s)"))
        for name in sorted(names):
            async with self._noting(f"queue {name}"):
                await self._look_at_queue(name)
        async with self._noting("events"):
            self._found += await look_at_events(self._session, self._link)
        await self._try_out()
        return self._found

    @asynccontextmanager
    async def _noting(self, check: str) -> AsyncIterator[None]:
        """What is raised inside is a finding."""
        try:
            yield
        except PalermoError as error:
            self._found.append(
                Finding.problem(check, str(error), _PERMISSIONS if "set_permissions" in str(error) else "")
            )

    # -- what is there ---------------------------------------------------------------------------

    async def _look_at_exchange(self) -> None:
        channel = await self._link.channel()
        try:
            await channel.call(channel.raw.exchange_declare, self._exchange, passive=True)
        except PalermoError:
            if channel.code != NOT_FOUND:
                raise
            text = f"{self._exchange} is not there yet; the first who publishes makes it"
            self._found.append(Finding.ok("exchange", text))
            return
        self._has_exchange = True
        try:
            await channel.call(channel.raw.exchange_declare, self._exchange, "direct", durable=True)
        except PalermoError as error:
            if channel.code != PRECONDITION_FAILED:
                raise
            self._has_exchange = False
            text = f"{self._exchange} is there and is not a durable direct one: {error}"
            self._found.append(Finding.problem("exchange", text, "Choose another name with --exchange."))
            return
        await channel.close()
        self._found.append(Finding.ok("exchange", f"{self._exchange}, direct and durable"))

    async def _look_at_queue(self, queue: str) -> None:
        name = amqp_queue(self._exchange, queue)
        channel = await self._link.channel()
        try:
            await channel.call(channel.raw.queue_declare, name, passive=True)
        except PalermoError:
            if channel.code != NOT_FOUND:
                raise
            return  # it is made when it is needed
        # A group's queue is declared as other programs declare it.
        kind = CLASSIC if Wiring(self._session.prefix).is_group(queue) else self._kind
        try:
            arguments = versions.arguments(kind, self._link.version)
            await channel.call(channel.raw.queue_declare, name, durable=True, arguments=arguments)
        except PalermoError as error:
            if channel.code != PRECONDITION_FAILED:
                raise
            self._found.append(differing(queue, str(error), self._link.version, ours=kind))
            return
        what = f"{self._kind} and durable, as Palermo makes it{versions.of_quorum(self._kind, self._link.version)}"
        if self._kind == CLASSIC and not is_failed(queue) and await _hold_priorities(channel, name):
            self._found.append(versions.no_priorities(queue, what))
        else:
            self._found.append(Finding.ok(f"queue {queue}", what))
        await channel.close()

    # -- what can be done ------------------------------------------------------------------------

    async def _try_out(self) -> None:
        name = internal(self._exchange, f"doctor.{secrets.token_hex(6)}")
        exchange = self._exchange if self._has_exchange else name
        try:
            async with self._noting("declare"):
                await self._declare(name, exchange)
                self._found.append(Finding.ok("declare", "queues and bindings can be made"))
                async with self._noting("publish"):
                    if await self._publish(exchange, name):
                        async with self._noting("consume"):
                            await self._consume(name)
        finally:
            await self._remove(name, exchange)

    async def _declare(self, name: str, exchange: str) -> None:
        channel = await self._link.channel()
        if exchange == name:
            await channel.call(channel.raw.exchange_declare, name, "direct", auto_delete=True)
        arguments = {"x-queue-type": self._kind, "x-expires": _EXPIRES_MS}
        await channel.call(channel.raw.queue_declare, name, durable=True, arguments=arguments)
        await channel.call(channel.raw.queue_bind, name, exchange, routing_key=name)
        await channel.close()

    async def _publish(self, exchange: str, name: str) -> bool:
        """Whether the server stored a message in time."""
        link = await open_link(self._session, "doctor")
        began = time.monotonic()
        try:
            publisher = await Publisher.open(link)
            properties = spec.BasicProperties(delivery_mode=PERSISTENT, message_id="doctor")
            async with asyncio.timeout(_PATIENCE):
                await publisher.send(exchange, name, properties, b"")
                took = (time.monotonic() - began) * 1_000
                # Under an alarm the first publish of a connection is what blocks it, and is stored all the same.
                await publisher.send(exchange, name, properties, b"")
        except TimeoutError:
            self._found.append(self._unconfirmed(link))
            return False
        finally:
            await link.close()
        self._found.append(Finding.ok("publish", f"stored and confirmed within {took:.0f} ms"))
        self._found.append(Finding.ok("alarms", "none: publishers are not blocked"))
        return True

    def _unconfirmed(self, link: Link) -> Finding:
        if link.blocked:
            return Finding.problem(
                "alarms",
                "a memory or disk alarm blocks publishers: enqueuing fails until it is over, and workers go on",
                "See `rabbitmq-diagnostics alarms`; free memory or disk space, or have workers empty the queues.",
            )
        return Finding.problem(
            "publish", f"not confirmed within {_PATIENCE:g} s", "The server is overloaded, or its disk is. See its log."
        )

    async def _consume(self, name: str) -> None:
        channel = await self._link.channel()
        got = await channel.get(name)
        if got is None:
            text = "what was published is not in the queue"
            self._found.append(Finding.problem("consume", text, "Does a policy expire or move messages of all queues?"))
            return
        channel.raw.basic_ack(got.tag)
        await channel.close()
        self._found.append(Finding.ok("consume", "what was published came back"))
        self._found.append(clock(got.properties.timestamp, time.time()))

    async def _remove(self, name: str, exchange: str) -> None:
        # Each on a channel of its own: a refusal of the one must not keep the other from going.
        with suppress(PalermoError):
            channel: Channel = await self._link.channel()
            await channel.call(channel.raw.queue_delete, name)
            await channel.close()
        if exchange == name:
            with suppress(PalermoError):
                channel = await self._link.channel()
                await channel.call(channel.raw.exchange_delete, name)
                await channel.close()


async def _hold_priorities(channel: Channel, name: str) -> bool:
    """Whether one of the first few jobs of a queue asks to go first; a look, as `browse` has it."""
    got = await take(channel, name, _FIRST_FEW)
    if got:
        channel.raw.basic_nack(got[-1].tag, multiple=True, requeue=True)
    return any(one.properties.priority for one in got)


def differing(queue: str, said: str, server: str, *, ours: str) -> Finding:
    """What it means that a queue is there with other arguments than ours, from the server's own words."""
    found = _DIFFERS.search(said)
    name = found["name"] if found else "unknown"
    theirs = found["theirs"].split(" (code")[0].rstrip(".") if found else said
    if name == "x-queue-type":
        kind = next((kind for kind in QUEUE_TYPES if kind in theirs), "")
        if kind:
            return versions.other_type(queue, ours=ours, theirs=kind)
    if name == "x-max-priority":
        return Finding.ok(f"queue {queue}", f"classic and durable, with priorities 0 to {_digits(theirs)}")
    if name == "x-delivery-limit":
        return versions.delivery_limit(queue, theirs, server)
    text = f"is there with {name} = {theirs} and used as it is"
    if name in _LOSING:
        return Finding.problem(
            f"queue {queue}",
            f"{text}: {_LOSING[name]}",
            "Empty it, delete it (palermo delete), and let Palermo make it.",
        )
    return Finding.warning(f"queue {queue}", text, "Empty and delete it if that is not what you want.")


def clock(stamped: float | None, now: float) -> Finding:
    """How far the server's clock is from ours, where it stamps messages (message_interceptors in its configuration)."""
    if stamped is None:
        return Finding.ok("clock", "the server does not tell its time; keep all machines on NTP")
    apart = abs(now - stamped)
    if apart <= _CLOCK:
        return Finding.ok("clock", f"within {_CLOCK:g} s of the server's")
    return Finding.warning(
        "clock",
        f"{apart:.0f} s from the server's: ages and times of jobs are wrong by that",
        "Run NTP on both machines.",
    )


def _digits(theirs: str) -> str:
    """The number in what the server says of an argument: the value '9' of type 'byte'."""
    found = re.search(r"\d+", theirs)
    return found[0] if found else theirs
