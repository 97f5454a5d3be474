"""Check a RabbitMQ server for problems, with a temporary test queue.

Publishing is tested on a separate connection: during an alarm the server stops reading from a connection that has
published, but the test queue must still be removed.
"""

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version

from palermo.brokers.rabbitmq import policies
from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.alarms import trouble_of
from palermo.brokers.rabbitmq.amqp.connection import Connection, open_connection
from palermo.brokers.rabbitmq.amqp.many_queues import probe_all
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT, Properties
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.replies import Difference, Probe
from palermo.brokers.rabbitmq.browsing.sweep import take
from palermo.brokers.rabbitmq.cluster.facts import Facts
from palermo.brokers.rabbitmq.leadership.workflow_client import RabbitmqWorkflows
from palermo.brokers.rabbitmq.publishing.declarer import EventTopology
from palermo.brokers.rabbitmq.seconds import CHECKED_WITHIN
from palermo.contract.broker import Finding, SessionParameters
from palermo.core.text import count
from palermo.core.topics import distributor, gateway
from palermo.core.topology import CLASSIC, FAILED_QUEUE, QUEUE_TYPES, amqp_queue, internal, is_failed
from palermo.errors import PalermoError


async def check_events(session: SessionParameters, connection: Connection, facts: Facts) -> list[Finding]:
    """The finding that events work, or one finding for each problem. Raises PalermoError."""
    found: list[Finding] = []
    there = 0
    for name, kind in ((gateway(session.prefix), "fanout"), (distributor(session.prefix), "topic")):
        if not await connection.has_exchange(name):
            continue
        there += 1
        if difference := await connection.declare_exchange(name, kind):
            text = f"exchange {name} exists, but is not a durable {kind} exchange: {difference.text}"
            found.append(Finding.problem("events", text, "Choose another prefix with the events_prefix setting."))
    if not there:
        return [Finding.ok("events", "no events have been published or subscribed to")]
    known = (await facts.read(connection)).subscriptions
    for group, one in known.items():
        name = amqp_queue(session.exchange, one.queue)
        if not (await connection.probe(name)).exists:
            text = f"group {group} subscribes, but its queue {name} does not exist, so its events are lost"
            advice = f"Start a worker of the group, or remove the group: palermo topics remove {group}"
            found.append(Finding.problem("events", text, advice))
    if there == 1:
        text = "one of the exchanges was deleted, so no group gets events"
        found.append(Finding.problem("events", text, "Start a worker of any group, or publish one event."))
    return found or [Finding.ok("events", f"subscribed: {count(len(known), 'group')}, by {gateway(session.prefix)}")]


#: Number of jobs at the head of a queue without priorities that are checked for priorities.
_FIRST_FEW = 10

#: Milliseconds after which the server removes the test queue if this process dies.
_EXPIRES_MS = 60_000

#: Tolerated clock difference in seconds, since instants on the wire are whole seconds.
_CLOCK = 2.0

_PERMISSIONS = "rabbitmqctl set_permissions -p VHOST USER '.*' '.*' '.*', or the patterns of docs/guides/deploying.md."

#: Size of stored workflows, in bytes, above which the leader's memory and the next leader's start suffer.
_MUCH = 100_000_000

#: Arguments, other than ours, that make a queue lose jobs, and how.
_LOSING = {
    "durable": "its jobs are lost when the server restarts",
    "auto_delete": "it is deleted with its jobs when its last worker ends",
    "exclusive": "it is deleted with the connection that created it",
    "x-message-ttl": "jobs that wait longer are lost",
    "x-expires": "it is deleted with its jobs when it is not used",
    "x-max-length": "jobs beyond this number are lost or refused",
    "x-max-length-bytes": "jobs beyond this size are lost or refused",
}


class Diagnosis:
    """One check of one server, on a session's connection."""

    def __init__(
        self,
        session: SessionParameters,
        connection: Connection,
        facts: Facts,
        workflows: RabbitmqWorkflows,
        unreadable: Callable[[], Awaitable[Mapping[str, int]]],
    ) -> None:
        """`unreadable` has the number of unreadable records for each stream or queue."""
        self._session = session
        self._exchange = session.exchange
        self._kind = session.queue_type
        self._connection = connection
        self._facts = facts
        self._workflows = workflows
        self._unreadable = unreadable
        self._found: list[Finding] = []
        self._has_exchange = False

    async def run(self) -> list[Finding]:
        properties = self._connection.raw.server_properties or {}
        product = str(properties.get("product", "RabbitMQ"))
        self._found = [
            Finding.ok("connection", f"to {self._connection.where} as user {self._connection.address.username}"),
            versions.server(self._connection.version, product),
            versions.client(version("pika")),
            versions.heartbeat(int(self._connection.raw.params.heartbeat or 0)),
            versions.consumer_timeout(self._connection.version),
            Finding.ok("plugins", "none is needed"),
        ]
        async with self._noting("exchange"):
            await self._check_exchange()
        names = {FAILED_QUEUE}
        async with self._noting("registry"):
            found = (await self._facts.read(self._connection)).queues
            names |= found
            self._found.append(Finding.ok("registry", f"readable, {count(len(found), 'queue')}"))
        await self._check_queues(sorted(names))
        self._found += policies.findings(
            await policies.definitions(self._connection),
            (amqp_queue(self._exchange, name) for name in names),
            internal(self._exchange, ""),
            f"{self._connection.host[0]}:{policies.PORT}",
        )
        async with self._noting("events"):
            self._found += await check_events(self._session, self._connection, self._facts)
        async with self._noting("workflows"):
            self._found += workflows(await self._workflows.size())
        await self._try_out()
        if not any(found.check == "alarms" and found.level == "problem" for found in self._found):
            async with self._noting("records"):
                self._found += records(await self._unreadable())
        return self._found

    @asynccontextmanager
    async def _noting(self, check: str) -> AsyncIterator[None]:
        """Convert a PalermoError in the block to a finding."""
        try:
            yield
        except PalermoError as error:
            self._found.append(
                Finding.problem(check, str(error), _PERMISSIONS if "set_permissions" in str(error) else "")
            )

    # -- existing objects ------------------------------------------------------------------------

    async def _check_exchange(self) -> None:
        if not await self._connection.has_exchange(self._exchange):
            text = f"{self._exchange} does not exist yet; the first enqueue creates it"
            self._found.append(Finding.ok("exchange", text))
            return
        if difference := await self._connection.declare_exchange(self._exchange, "direct"):
            text = f"{self._exchange} exists, but is not a durable direct exchange: {difference.text}"
            self._found.append(Finding.problem("exchange", text, "Choose another name with --exchange."))
            return
        self._has_exchange = True
        self._found.append(Finding.ok("exchange", f"{self._exchange}, direct and durable"))

    async def _check_queues(self, queues: list[str]) -> None:
        named = {queue: amqp_queue(self._exchange, queue) for queue in queues}
        probes: dict[str, Probe] = {}
        with suppress(PalermoError):  # without an answer from RabbitMQ to all, each is queried separately
            probes = await probe_all(self._connection, named.values())
        for queue, name in named.items():
            async with self._noting(f"queue {queue}"):
                probe = probes.get(name) or await self._connection.probe(name)
                if probe.exists:  # otherwise it is created on demand
                    await self._check_queue(queue, probe)

    async def _check_queue(self, queue: str, probe: Probe) -> None:
        name = amqp_queue(self._exchange, queue)
        # A group's queue is declared in the same way by other programs.
        kind = CLASSIC if EventTopology(self._session.prefix).is_group(queue) else self._kind
        if difference := await self._connection.declare(name, versions.arguments(kind, self._connection.version)):
            self._found.append(differing(queue, difference, self._connection.version, ours=kind))
            return
        what = f"{self._kind} and durable{versions.of_quorum(self._kind, self._connection.version)}"
        if self._kind == CLASSIC and not is_failed(queue) and await self._has_priorities(name, probe.messages):
            self._found.append(versions.no_priorities(queue, what))
        else:
            self._found.append(Finding.ok(f"queue {queue}", what))

    async def _has_priorities(self, name: str, waiting: int) -> bool:
        """Whether one of the first jobs of a queue has a priority. The jobs are requeued, as by `browse`."""
        if not waiting:
            return False
        channel = await self._connection.channel()
        got = await take(channel, name, min(waiting, _FIRST_FEW))
        await channel.close()
        return any(one.properties.priority for one in got)

    # -- operations ------------------------------------------------------------------------------

    async def _try_out(self) -> None:
        name = internal(self._exchange, f"check.{secrets.token_hex(6)}")
        exchange = self._exchange if self._has_exchange else name
        try:
            async with self._noting("declare"):
                await self._declare(name, exchange)
                self._found.append(Finding.ok("declare", "queues and bindings can be created"))
                async with self._noting("publish"):
                    if await self._publish(exchange, name):
                        async with self._noting("consume"):
                            await self._consume(name)
        finally:
            await self._remove(name, exchange)

    async def _declare(self, name: str, exchange: str) -> None:
        arguments = {"x-queue-type": self._kind, "x-expires": _EXPIRES_MS}
        async with self._connection.spare_channel() as channel:
            if exchange == name:
                await channel.call(channel.raw.exchange_declare, name, "direct", auto_delete=True)
            await channel.call(channel.raw.queue_declare, name, durable=True, arguments=arguments)
            await channel.bind(name, exchange, routing_key=name)

    async def _publish(self, exchange: str, name: str) -> bool:
        """Publish test messages. Returns whether the server confirmed them in time."""
        connection = await open_connection(self._session, "doctor")
        began = time.monotonic()
        try:
            publisher = await Publisher.open(connection)
            properties = Properties(delivery_mode=PERSISTENT, message_id="doctor")
            async with asyncio.timeout(CHECKED_WITHIN):
                await publisher.send(exchange, name, properties, b"")
                took = (time.monotonic() - began) * 1_000
                # Twice, since during an alarm the first one is stored, and only then blocks the connection.
                await publisher.send(exchange, name, properties, b"")
        except TimeoutError:
            self._found.append(self._unconfirmed(connection))
            return False
        finally:
            await connection.close()
        self._found.append(Finding.ok("publish", f"stored and confirmed within {took:.0f} ms"))
        self._found.append(Finding.ok("alarms", "none: publishers are not blocked"))
        return True

    def _unconfirmed(self, connection: Connection) -> Finding:
        if (trouble := trouble_of(connection)) is not None:
            return Finding.problem("alarms", trouble.cause, trouble.advice)
        return Finding.problem(
            "publish",
            f"not confirmed within {CHECKED_WITHIN:g} s",
            "The server or its disk is overloaded. Check the server's log.",
        )

    async def _consume(self, name: str) -> None:
        channel = await self._connection.channel()
        got = await channel.get(name)
        if got is None:
            text = "the published message is not in the queue"
            self._found.append(
                Finding.problem("consume", text, "Check for a policy that expires or moves messages of all queues.")
            )
            return
        channel.ack(got.tag)
        await channel.close()
        self._found.append(Finding.ok("consume", "the published message was received"))
        self._found.append(clock(got.properties.timestamp, time.time()))

    async def _remove(self, name: str, exchange: str) -> None:
        # Each on its own channel, so that a refused deletion doesn't prevent the other.
        with suppress(PalermoError):
            await self._connection.delete(name)
        if exchange == name:
            with suppress(PalermoError):
                async with self._connection.spare_channel() as channel:
                    await channel.call(channel.raw.exchange_delete, name)


def records(unreadable: Mapping[str, int]) -> list[Finding]:
    """The findings about unreadable records: one for each stream or queue, or a single good one if there are none."""
    return [
        Finding.warning(
            "records",
            f"{count(number, 'record')} in {source} cannot be read and {'is' if number == 1 else 'are'} ignored;"
            " everything else works",
            f"Another program publishes to {source}. Find it, for example with `rabbitmqctl list_connections`. The log"
            " of each worker shows the first such record.",
        )
        for source, number in unreadable.items()
    ] or [Finding.ok("records", "all records in Palermo's own streams and queues can be read")]


def workflows(size: int) -> list[Finding]:
    """The finding about stored workflows, if they are too large."""
    if size <= _MUCH:
        return []
    text = f"running and failed workflows take {size / 1_000_000:,.0f} MB of a worker's memory"
    advice = "Cancel failed workflows (palermo workflows), and pass references instead of data between steps."
    return [Finding.warning("workflows", text, advice)]


def differing(queue: str, difference: Difference, server: str, *, ours: str) -> Finding:
    """The finding about a queue with other arguments than ours."""
    name, theirs = difference.argument or "unknown", difference.theirs or difference.text
    if name == "x-queue-type":
        kind = next((kind for kind in QUEUE_TYPES if kind in theirs), "")
        if kind:
            return versions.other_type(queue, ours=ours, theirs=kind)
    if name == "x-max-priority":
        return Finding.ok(f"queue {queue}", f"classic and durable, with priorities 0 to {_digits(theirs)}")
    if name == "x-delivery-limit":
        return versions.delivery_limit(queue, theirs, server)
    text = f"has {name} = {theirs}; used unchanged"
    if name in _LOSING:
        return Finding.problem(
            f"queue {queue}",
            f"{text}: {_LOSING[name]}",
            "Empty it and delete it (palermo delete). Palermo then creates it again.",
        )
    return Finding.warning(f"queue {queue}", text, "If this is not intended, empty it and delete it (palermo delete).")


def clock(stamped: float | None, now: float) -> Finding:
    """The finding about the server's clock, if it stamps messages (message_interceptors in its configuration)."""
    if stamped is None:
        return Finding.ok("clock", "the server does not report its time; synchronize all machines by NTP")
    apart = abs(now - stamped)
    if apart <= _CLOCK:
        return Finding.ok("clock", f"within {_CLOCK:g} s of the server's clock")
    return Finding.warning(
        "clock",
        f"{apart:.0f} s from the server's clock, so ages and times of jobs are wrong",
        "Synchronize both machines by NTP.",
    )


def _digits(theirs: str) -> str:
    """The number in the server's text about an argument, such as "the value '9' of type 'byte'"."""
    found = re.search(r"\d+", theirs)
    return found[0] if found else theirs
