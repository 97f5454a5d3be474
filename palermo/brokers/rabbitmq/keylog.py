"""The log of keys, the durable queue `~unique`, in the hands of the one who leads: read, added to, and written anew.

All of it is held unacknowledged, so that whoever leads next reads it again. A batch and the jobs that it lets into
their queues are one AMQP transaction; what that does not promise, of queues that are not classic and of a broker that
is killed within a commit, is made up for by publishing the jobs of the last batch again: see docs/design.md.
"""

import asyncio
import json
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pika import spec

from palermo.brokers.rabbitmq.batches import fold, parts
from palermo.brokers.rabbitmq.later import settled
from palermo.brokers.rabbitmq.link import Channel, Link, fulfil
from palermo.brokers.rabbitmq.outbox import Outbox
from palermo.brokers.rabbitmq.translate import PRECONDITION_FAILED
from palermo.brokers.rabbitmq.wire import PERSISTENT, to_message, to_properties
from palermo.core.keys import Key, message_from_plain, message_to_plain
from palermo.core.message import Message
from palermo.core.topology import CLASSIC, internal
from palermo.errors import BrokerUnavailable, PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Records, or seconds, after which all keys are written anew, RabbitMQ takes back what is held for half an hour; where
#: there are many keys as many records, but never more than so many.
_MANY, _OLD, _MOST = 2_000, 600.0, 30_000

#: A batch holds its jobs themselves up to so many bytes of bodies.
_JOBS_BYTES = 1_048_576

#: Seconds after which it is written by itself that a batch is stored with its jobs.
_SAY_WITHIN = 0.005

#: Seconds that a mark may be on its way through the queue to us.
_PATIENCE = 10.0

#: Fleeting, and so gone once the broker has been killed.
_CANARY = json.dumps({"canary": True}).encode()

_STATE = spec.BasicProperties(delivery_mode=PERSISTENT, content_type="application/json")
_FLEETING = spec.BasicProperties(delivery_mode=1, content_type="application/json")


def queue_of(exchange: str) -> str:
    """The AMQP queue of the log."""
    return internal(exchange, "unique")


class KeyLog:
    """See the module's first lines."""

    def __init__(
        self,
        exchange: str,
        link: Link,
        outbox: Outbox,
        arguments: Mapping[str, Any],
        ended: Callable[[Mapping[str, Any], int], None],
        beside: Channel,
    ) -> None:
        """`arguments` are those that the queue is declared with; `beside` is a channel that is not for transactions.

        `ended` is told what a worker wrote of the end of a run, with the tag to be given to `settle` or `keep`.
        """
        self._queue = queue_of(exchange)
        self._link = link
        self._outbox = outbox
        self._arguments = dict(arguments)
        self._ended = ended
        self._beside = beside
        self._by = uuid.uuid4().hex
        self._loop = asyncio.get_running_loop()
        self._channel: Channel | None = None
        self._classic = False
        #: What has been read since the channel was opened and not been folded yet; None from then on.
        self._read: list[tuple[int, Mapping[str, Any]]] | None = []
        self._number = 0
        #: The number of the last batch that is known to be stored with its jobs; and whether that is to be written.
        self._sure = 0
        self._unsaid = False
        #: The ids of the jobs in batches of which no later one says that they are sure.
        self.unsure: set[str] = set()
        self._saying: asyncio.Task[None] | None = None
        #: Tags of batches, and of what is done with: acknowledged with the next commit.
        self._tags: list[int] = []
        self._done: list[int] = []
        self._canaries: list[int] = []
        self._since = 0.0
        self._marks: dict[str, asyncio.Future[None]] = {}
        self._returned: list[Message] = []

    @property
    def is_open(self) -> bool:
        """Whether all that is in the log is known."""
        return self._channel is not None and self._channel.is_open and self._read is None

    @property
    def number(self) -> int:
        """That of the last batch."""
        return self._number

    @property
    def is_swift(self) -> bool:
        """Whether `note` keeps what it promises: not where a queue may lose what it has not confirmed with one node."""
        return self._classic and self.is_open and self._beside.is_open

    async def exists(self) -> bool:
        """Whether anybody has ever needed it."""
        channel = await self._link.channel()
        try:
            await channel.call(channel.raw.queue_declare, self._queue, passive=True)
        except PalermoError:
            if channel.missing:
                return False
            raise
        await channel.close()
        return True

    async def open(self) -> tuple[dict[str, Key], list[tuple[Mapping[str, Any], int]]]:
        """Read all of it, and make sure of the jobs of the last batch; the keys, and the ends that come on top of them.

        Those are to be heard before anything else is decided, each as `ended` would be told of it.
        """
        ours = await make(self._link, self._queue, self._arguments)
        self._classic = ours and self._arguments.get("x-queue-type") == CLASSIC
        self._read, self._tags, self._done, self._returned = [], [], [], []
        self._since = self._loop.time()
        channel = self._channel = await self._link.channel()
        raw = channel.raw
        raw.add_on_cancel_callback(lambda _: raw.close())
        raw.add_on_return_callback(self._on_return)
        await channel.call(raw.tx_select)
        await channel.call(raw.basic_qos, prefetch_count=65_535)
        await channel.call(raw.basic_consume, self._queue, self._on_record)
        # Until the broker has noticed the end of who led before, what that one held is not there.
        await settled(channel, self._queue, readers=1)
        await self._reach_beside()
        await self.reach()
        read, self._read = self._read or [], None
        batches = [record for _, record in read if "n" in record]
        self._tags = [tag for tag, record in read if "n" in record]
        self._canaries = [tag for tag, record in read if "canary" in record]
        keys = fold(batches)
        self._number = max((record["n"] for record in batches), default=0)
        known = max((record["sure"] for record in batches), default=0)
        # What is fleeting is still there: the broker has not been killed since it was put there.
        intact = self._classic and any("canary" in record for _, record in read)
        self.unsure = set()
        for record in batches:
            if record["n"] > known and record["jobs"]:
                self.unsure |= {str(job["id"]) for job in record["jobs"]}
                if not (intact and record["atomic"]):
                    await self._make_sure(record["jobs"])
        self._sure, self._unsaid = self._number, True
        if not intact and self._classic:
            raw.basic_publish("", self._queue, _CANARY, _FLEETING)
            await channel.call(raw.tx_commit)
        return keys, [(record, tag) for tag, record in read if "end" in record]

    def let_go(self) -> None:
        """Know nothing any more: what was done is to be read again."""
        channel, self._channel = self._channel, None
        if channel is not None and channel.is_open:
            channel.raw.close()

    def settle(self, tag: int) -> None:
        """What a worker wrote is in a batch that is stored."""
        self._done.append(tag)

    def keep(self, tag: int) -> None:
        """What a worker wrote is in no batch: it is part of the log until all keys are written anew."""
        self._tags.append(tag)

    def note(self, key: Key) -> None:
        """Write down a state and wait for nothing; only where this log `is_swift`.

        Whatever is published on the channel beside after it is handed on after it: whoever leads next knows the state,
        unless the broker is killed too, within the time that it takes to write to the disk.
        """
        self._number += 1
        batch = self._batch(self._number, {key.name: key.to_plain()})
        self._beside.raw.basic_publish("", self._queue, json.dumps(batch, separators=(",", ":")).encode(), _STATE)

    def _batch(self, number: int, keys: Mapping[str, Any]) -> dict[str, Any]:
        return {"n": number, "by": self._by, "sure": self._sure, "atomic": True, "keys": keys, "jobs": []}

    async def commit(self, changes: Mapping[str, Key], jobs: Sequence[Message]) -> None:
        """Store a batch, and the jobs where they belong. After an error nothing is known: `let_go` was called."""
        channel = self._channel
        if channel is None or not channel.is_open:
            raise BrokerUnavailable("the log of keys is not open.")
        try:
            routes = [await self._outbox.route(job) for job in jobs]
            atomic = self._classic and all(kind == CLASSIC for _, _, kind in routes)
            raw, number = channel.raw, self._number + 1
            batch = self._batch(
                number, {name: None if key.is_free else key.to_plain() for name, key in changes.items()}
            )
            batch["atomic"] = atomic
            if sum(len(job.body) for job in jobs) <= _JOBS_BYTES:
                batch["jobs"] = [message_to_plain(job) for job in jobs]
            body = json.dumps(batch, separators=(",", ":")).encode()
            self._number, self._returned = number, []
            if atomic:
                raw.basic_publish("", self._queue, body, _STATE)
                for job, (exchange, key, _) in zip(jobs, routes, strict=True):
                    raw.basic_publish(exchange, key, job.body, to_properties(job), mandatory=True)
            else:
                await (await self._outbox.open()).send("", self._queue, _STATE, body)
                for job in jobs:
                    await self._outbox.publish(job, job.queue)
            self._acknowledge(channel)
            await channel.call(raw.tx_commit)
            # Their queues were deleted by somebody, and they are out of the transaction by now.
            returned, self._returned = self._returned, []
            for job in returned:
                await self._outbox.publish(job, job.queue)
        except BaseException:
            self.let_go()
            raise
        self._sure, self._unsaid = number, bool(jobs)
        self.unsure = {job.id for job in jobs}
        if jobs and self._classic and (self._saying is None or self._saying.done()):
            self._saying = self._loop.create_task(self._say())

    async def _say(self) -> None:
        """Write that the jobs of the last batch are sure, unless the next batch does so soon."""
        number = -1
        with suppress(PalermoError):  # then the next batch says it
            while self.unsure and self.is_open:
                if number == self._sure:
                    self._number += 1
                    body = json.dumps(self._batch(self._number, {}), separators=(",", ":")).encode()
                    await (await self._outbox.open()).send("", self._queue, _STATE, body)
                    if number == self._sure:
                        self.unsure, self._unsaid = set(), False
                number = self._sure
                await asyncio.sleep(_SAY_WITHIN)

    async def reach(self) -> None:
        """Wait until all that is in the queue by now has been read."""
        if self._channel is None or not self._channel.is_open:
            raise BrokerUnavailable("the log of keys is not open.")
        publisher = await self._outbox.open()
        name, future = self._mark()
        await publisher.send("", self._queue, _FLEETING, name)
        await self._passed(future)

    async def _reach_beside(self) -> None:
        """Wait until all that `note` has written has been read."""
        name, future = self._mark()
        self._beside.raw.basic_publish("", self._queue, name, _FLEETING)
        await self._passed(future)

    def _mark(self) -> "tuple[bytes, asyncio.Future[None]]":
        name, future = uuid.uuid4().hex, self._loop.create_future()
        self._marks[name] = future
        future.add_done_callback(lambda _: self._marks.pop(name, None))
        return json.dumps({"mark": name}).encode(), future

    @staticmethod
    async def _passed(mark: "asyncio.Future[None]") -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                await mark
        except TimeoutError:
            raise BrokerUnavailable("the queue of keys does not hand out what was put in.") from None

    async def tidy(self, keys: Mapping[str, Key]) -> None:
        """Write all keys anew where the log is long or old, and say what is sure; to be called between commits."""
        channel = self._channel
        if channel is None or not self.is_open:
            return
        old = self._loop.time() - self._since > _OLD
        if not old and len(self._tags) < min(_MANY + (len(keys) if self._classic else 0), _MOST):
            if self._unsaid:
                await self.commit({}, ())
            elif self._done:
                await self._commit_acknowledgements(channel)
            return
        before, canaries, raw = list(self._tags), list(self._canaries), channel.raw
        try:
            number = self._number = self._number + 1
            found = list(parts(keys.values()))
            for place, part in enumerate(found):
                batch = {**self._batch(number, part), "all": [place, len(found)]}
                body = json.dumps(batch, separators=(",", ":")).encode()
                if self._classic:
                    raw.basic_publish("", self._queue, body, _STATE)
                else:
                    await (await self._outbox.open()).send("", self._queue, _STATE, body)
            if self._classic:
                raw.basic_publish("", self._queue, _CANARY, _FLEETING)
            await channel.call(raw.tx_commit)
            # Only now, in a transaction of its own: of one that the broker is killed in any part may be stored.
            self._tags = self._tags[len(before) :]
            self._canaries = self._canaries[len(canaries) :]
            self._done += [*before, *canaries]
            self._acknowledge(channel)
            await channel.call(raw.tx_commit)
        except BaseException:
            self.let_go()
            raise
        self._sure, self._unsaid, self._since = number, False, self._loop.time()
        self.unsure = set()

    async def _commit_acknowledgements(self, channel: Channel) -> None:
        try:
            self._acknowledge(channel)
            await channel.call(channel.raw.tx_commit)
        except BaseException:
            self.let_go()
            raise

    def _acknowledge(self, channel: Channel) -> None:
        # Never while a commit is under way: RabbitMQ ends a connection that says anything meanwhile (504).
        done, self._done = self._done, []
        for tag in done:
            channel.raw.basic_ack(tag)

    async def _make_sure(self, jobs: Iterable[Mapping[str, Any]]) -> None:
        """Publish jobs that may not have been stored; a second message of one is known when it is started."""
        for plain in jobs:
            message = message_from_plain(plain)
            await self._outbox.publish(message, message.queue)

    def _on_record(self, raw: Any, method: Any, properties: object, body: bytes) -> None:
        try:
            record = json.loads(body)
        except ValueError:
            record = None
        tag = method.delivery_tag
        match record:
            case {"mark": str(name)}:
                self._done.append(tag)
                if name in self._marks:
                    fulfil(self._marks[name], None)
            case {"n": int(), "sure": int(), "keys": dict(), "jobs": list()} | {"end": dict()} | {"canary": _}:
                if self._read is not None:
                    self._read.append((tag, record))
                elif "n" in record:
                    self._tags.append(tag)
                    if record.get("by") != self._by:
                        log.warning("who led before has written of keys after we read them")
                        self.let_go()
                elif "end" in record:
                    self._ended(record, tag)
                else:
                    self._canaries.append(tag)
            case _:
                log.warning("a record of keys cannot be read record=%.200r", body)

    def _on_return(self, _: object, method: Any, properties: spec.BasicProperties, body: bytes) -> None:
        self._returned.append(to_message(properties, body, taken_from=None))


async def make(link: Link, queue: str, arguments: Mapping[str, Any]) -> bool:
    """See that the queue of a log is there; whether it has these arguments."""
    channel = await link.channel()
    try:
        await channel.call(channel.raw.queue_declare, queue, durable=True, arguments=arguments)
    except PalermoError:
        if channel.code != PRECONDITION_FAILED:
            raise
        return False
    await channel.close()
    return True
