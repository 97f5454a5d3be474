"""Requests and commands to all living workers, and their replies, without the management plugin.

A request goes to all workers through the fanout exchange `~control`, and each worker answers by direct reply-to.
Workers that a command doesn't concern answer too, so that the sender need not wait for them. The number of answers to
expect comes from `census`: workers are the consumers of the queue `~presence`, which never holds a message. If the
queue's node in a cluster is down, the number is unknown, and workers consume from it again when the node is back.
"""

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.alarms import no_permission_to_ask
from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.messages import Got, Properties, read_object, write_record
from palermo.brokers.rabbitmq.amqp.publisher import MissingQueues, Publisher
from palermo.brokers.rabbitmq.amqp.rpc import ask_all
from palermo.brokers.rabbitmq.seconds import AGAIN, ANSWERED_WITHIN, LEFT_ALONE, STORED_WITHIN
from palermo.contract.tasks import spawn
from palermo.contract.trouble import Trouble
from palermo.contract.worker_info import CommandReply, OnCommand, WorkerCommand, WorkerInfo, WorkerList
from palermo.core.topology import internal
from palermo.errors import BrokerRefused, BrokerUnavailable, NotFound, PalermoError

#: The result of a census while the queue is down: larger than any real number of workers.
UNKNOWN = 1_000_000


async def census(connection: Connection, exchange: str, missing: MissingQueues | None = None) -> int:
    """The number of living workers; UNKNOWN while the queue is down.

    It is correct within milliseconds after a kill -9.

    A session that calls this repeatedly passes its `missing` queues.
    """
    presence = internal(exchange, "presence")
    try:
        probe = await (missing.probe(connection, presence) if missing is not None else connection.probe(presence))
    except BrokerUnavailable:
        if connection.error is not None:
            raise
        return UNKNOWN
    return probe.consumers if probe.exists else 0


class WorkerPresence:
    """One worker's consumer on the queue `~presence`, by which the worker is counted.

    If the queue is deleted, the session ends, and the next one creates it again.
    """

    def __init__(self, connection: Connection, exchange: str, *, kind: str) -> None:
        """`kind` is the type of the queue if it has to be created."""
        self._connection = connection
        self._name = internal(exchange, "presence")
        self._kind = kind
        self._channel: Channel | None = None
        self._again: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Start being counted, now or once the queue is up, until the connection ends or `end` is called."""
        if not (await self._connection.probe(self._name)).exists:
            await self._connection.declare(self._name, versions.arguments(self._kind, self._connection.version))
        if not await self._join():
            self._lost()

    async def end(self) -> None:
        if self._again is not None:
            self._again.cancel()
        if self._channel is not None:
            await self._channel.close()

    async def _join(self) -> bool:
        """Consume from the queue. False if the queue is down."""
        try:
            channel = self._channel = await self._connection.channel()
            channel.on_cancel(self._lost)
            await channel.consume(self._name, lambda _: None, auto_ack=True)
        except NotFound:
            self._connection.give_up(f"queue {self._name}")
            return False
        except BrokerUnavailable:
            if self._connection.error is not None:
                raise
            return False
        return True

    def _lost(self) -> None:
        """Consume again after the queue's node has died or is down, or the queue was deleted."""
        if self._again is None or self._again.done():
            self._again = asyncio.ensure_future(self._join_again())

    async def _join_again(self) -> None:
        joined = False
        while not joined and self._connection.error is None:
            await asyncio.sleep(AGAIN)
            with suppress(PalermoError):  # a missing permission may be granted later
                if self._channel is not None:
                    await self._channel.close()
                joined = await self._join()


log = logging.getLogger("palermo.rabbitmq")

#: Maximum number of jobs in one command.
_MANY = 1_000


class WorkerControl:
    """The presence of one worker: it is counted by other sessions, and answers their requests."""

    def __init__(
        self,
        connection: Connection,
        exchange: str,
        report: Callable[[], WorkerInfo],
        on_command: OnCommand,
        publisher: Callable[[], Awaitable[Publisher]],
        look: Callable[[], Awaitable[None]],
        waiting: Callable[[], Sequence[str]],
        taken: Callable[[], Sequence[str]],
        *,
        kind: str,
    ) -> None:
        """`look` reads changes of pauses and cancels, and returns once this worker has applied them.

        `waiting` returns the ids of delivered jobs that no slot has taken, and `taken` those of the others, also the
        running ones. `kind` is the type of the queue `~presence` if it has to be created.
        """
        self._look = look
        self._waiting = waiting
        self._taken = taken
        self._exchange = exchange
        self._connection = connection
        self._presence = WorkerPresence(connection, exchange, kind=kind)
        self._report = report
        self._on_command = on_command
        self._publisher = publisher
        self._answers: set[asyncio.Task[None]] = set()
        self._channel: Channel
        #: The queue for requests to this worker, which ends with the session. Its name is random, since a reused name
        #: would raise 405 until RabbitMQ notices a dead socket.
        self.inbox = internal(exchange, f"worker.{uuid.uuid4()}")

    @property
    def worker(self) -> str:
        """The worker's id."""
        return self._report().id

    async def begin(self) -> None:
        """Accept requests, and let other sessions count this worker, until the connection ends or `end` is called."""
        # The inbox first, since every counted worker must be able to answer.
        channel = self._channel = await self._connection.channel()
        # RabbitMQ executes these in order, so the answer to the last one is enough.
        channel.send(channel.raw.queue_declare, self.inbox, exclusive=True, auto_delete=True)
        control = internal(self._exchange, "control")
        channel.send(channel.raw.exchange_declare, control, "fanout", durable=True)
        channel.send(channel.raw.queue_bind, self.inbox, control)
        await channel.consume(self.inbox, self._on_question, auto_ack=True)
        channel.on_cancel(lambda: self._connection.give_up(f"queue {self.inbox}"))
        await self._presence.begin()

    async def end(self) -> None:
        if self._answers:
            # An idle worker that is commanded to stop gets here before it has answered.
            await asyncio.wait(set(self._answers), timeout=STORED_WITHIN)
        for task in self._answers:
            task.cancel()
        await self._presence.end()
        await self._channel.close()

    def _on_question(self, got: Got) -> None:
        spawn(self._answers, self._answer(read_object(got.body), got.properties.reply_to))

    async def _answer(self, question: Mapping[str, Any], reply_to: str | None) -> None:
        answer: Mapping[str, Any] = {}
        if question.get("ask", "report") == "report":
            counts = self._connection.unreadable.counts
            report = self._report()
            running = {job.id for job in report.jobs}
            held = {"waiting": self._waiting(), "taken": [id for id in self._taken() if id not in running]}
            answer = {**report.to_plain(), **held, "inbox": self.inbox, "unreadable": counts}
        elif question["ask"] == "look":
            await self._look()
        else:
            id, unreadable = self._report().id, self._connection.unreadable
            order = unreadable.attempt("the orders to workers", question, partial(WorkerCommand.from_plain, question))
            values = await self._on_command(order) if order is not None and order.is_for(id) else None
            answer = {"worker": id, "values": values}
        if not reply_to:
            return
        # On the publishing connection, because a connection that has ever published blocks during a memory alarm, acks
        # included.
        body = write_record(answer)
        try:
            publisher = await self._publisher()
            await publisher.send("", reply_to, Properties(content_type="application/json"), body)
        except PalermoError:
            return  # this session or the requester's has ended


class Reports(Struct, frozen=True):
    """The reports of the responding workers."""

    #: Each with the worker's queue for requests, "" if unknown.
    answers: tuple[tuple[str, WorkerInfo], ...]
    #: Number of living workers without an answer; None if the number of workers is unknown.
    missing: int | None
    #: Number of records that this session and the workers could not read, by stream or queue.
    unreadable: Mapping[str, int] = {}
    #: Whether this user has permission to send requests to workers.
    may_ask: bool = True

    @property
    def workers(self) -> WorkerList:
        return WorkerList((info for _, info in self.answers), complete=self.missing == 0)


class WorkerReports:
    """The reports of all workers, for a session that asks often.

    A silent worker is waited for only once in LEFT_ALONE seconds.
    """

    def __init__(
        self,
        connection: Connection,
        reading: Callable[[], Awaitable[Connection]],
        exchange: str,
        missing: MissingQueues,
    ) -> None:
        """`connection` is for requests; `reading` returns the connection on which workers are counted."""
        self._connection = connection
        self._reading = reading
        self._exchange = exchange
        self._missing = missing
        #: The workers that answered last time, by their queues for requests; the number of silent ones; and when the
        #: session last waited for all.
        self._answered: frozenset[str] = frozenset()
        self._silent = 0
        self._waited_at = float("-inf")
        #: Why the workers could not be asked last time: a missing permission. None otherwise.
        self.trouble: Trouble | None = None

    async def ask(self) -> Reports:
        if time.monotonic() - self._waited_at > LEFT_ALONE:
            self._silent, self._waited_at = 0, time.monotonic()
        reports = await _ask_reports(
            self._connection,
            self._exchange,
            self._missing,
            reading=await self._reading(),
            silent=self._silent,
            of=self._answered,
        )
        control = internal(self._exchange, "control")
        self.trouble = None if reports.may_ask else no_permission_to_ask(self._connection, control)
        self._silent = reports.missing or 0
        self._answered = frozenset(inbox for inbox, _ in reports.answers if inbox)
        return reports


async def ask_workers(connection: Connection, exchange: str) -> WorkerList:
    """The reports of all living and responding workers."""
    return (await _ask_reports(connection, exchange)).workers


async def _ask_reports(
    connection: Connection,
    exchange: str,
    missing: MissingQueues | None = None,
    *,
    reading: Connection | None = None,
    silent: int = 0,
    of: frozenset[str] = frozenset(),
) -> Reports:
    """Ask all workers. Waits for all but `silent` of them, and for every worker with an inbox in `of`."""
    reading = reading or connection
    alive = await census(reading, exchange, missing)

    def enough(answers: Sequence[dict[str, Any]]) -> bool:
        return len(answers) >= alive - silent and of.issubset(str(each.get("inbox")) for each in answers)

    may_ask, plain = True, list[dict[str, Any]]()
    try:
        plain = await _ask(connection, exchange, {"ask": "report"}, alive=alive, timeout=ANSWERED_WITHIN, enough=enough)
    except BrokerRefused:
        may_ask = False
    if len(plain) < alive:
        alive = await census(reading, exchange)
    now = time.time()
    answers, unreadable = list[tuple[str, WorkerInfo]](), Counter(connection.unreadable.counts)
    for each in plain:
        info = connection.unreadable.attempt("the answers of workers", each, partial(WorkerInfo.from_plain, each))
        if info is not None:
            answers.append((str(each.get("inbox", "")), replace(info, seen_at=now)))
            unreadable |= _counts(each.get("unreadable"))
    silent_ones = None if alive == UNKNOWN else max(0, alive - len(answers))
    return Reports(tuple(answers), silent_ones, unreadable, may_ask)


def _counts(plain: object) -> Counter[str]:
    found = plain.items() if isinstance(plain, dict) else ()
    return Counter({source: count for source, count in found if isinstance(count, int)})


async def command_workers(
    connection: Connection, exchange: str, order: WorkerCommand, *, timeout: float
) -> list[CommandReply]:
    """Send a command. Returns the replies of the addressed workers, by id."""
    named = set(order.workers)

    def enough(answers: Sequence[dict[str, Any]]) -> bool:
        return bool(named) and named <= {answer.get("worker") for answer in answers}

    found: dict[str, CommandReply] = {}
    alive = await census(connection, exchange)
    for answer in await _ask(connection, exchange, order.to_plain(), alive=alive, timeout=timeout, enough=enough):
        match answer:
            case {"worker": str(worker), "values": dict(values)}:
                found[worker] = CommandReply(worker=worker, values=values)
    return [found[worker] for worker in sorted(found)]


async def jobs_of_workers(connection: Connection, exchange: str, ids: Collection[str]) -> set[str]:
    """The jobs among these that a worker runs, or whose end it remembers. A silent worker counts as dead."""
    found = set[str]()
    for start in range(0, len(ids), _MANY):
        order = WorkerCommand(action="outcome", ids=tuple(islice(ids, start, start + _MANY)))
        alive = await census(connection, exchange)
        for answer in await _ask(connection, exchange, order.to_plain(), alive=alive, timeout=ANSWERED_WITHIN):
            match answer:
                case {"values": {"known": list(known)}}:
                    found.update(map(str, known))
    return found


async def notify_workers(connection: Connection, exchange: str, question: Mapping[str, Any]) -> None:
    """Send a request, if permitted, and wait until the workers have answered it; ignore the answers."""
    with suppress(BrokerRefused):
        await _ask(connection, exchange, question, alive=await census(connection, exchange), timeout=ANSWERED_WITHIN)


async def _ask(
    connection: Connection,
    exchange: str,
    question: Mapping[str, Any],
    *,
    alive: int,
    timeout: float,
    enough: Callable[[Sequence[dict[str, Any]]], bool] = lambda answers: False,
) -> list[dict[str, Any]]:
    """The workers' answers, once all `alive` workers have answered, there are enough, or the time is up."""
    if not alive:
        return []
    control = internal(exchange, "control")
    return await ask_all(connection, control, question, count=alive, timeout=timeout, enough=enough)
