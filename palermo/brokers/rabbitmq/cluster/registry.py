"""The names of all queues, kept in a stream, because AMQP itself cannot list them.

One record is written before a queue is made, and one when it is deleted. The stream drops its oldest records. Before
one of those would be dropped that count, the leader writes all names again: `{"queue": name, "again": true}`.

* The leader is killed meanwhile: the next one finds the oldest name as far back as before, and writes all again.
* There is no leader, and so no worker, for many thousands of records: the oldest names are forgotten. A queue is
  registered again by the next session that uses it (QueueRegistration).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from itertools import islice

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.many_queues import probe_all
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.replies import Probe
from palermo.brokers.rabbitmq.amqp.stream import Follower, Record, Stream
from palermo.core.topology import amqp_queue, check_queue_name, internal
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: The stream's bounds in bytes: some 60,000 records. It drops one segment at a time.
_BOUNDS = {"x-max-length-bytes": 16 * 1024 * 1024, "x-stream-max-segment-size-bytes": 2 * 1024 * 1024}

#: All names are written again when the oldest has so many records behind it, and so many for each name.
_FAR, _FAR_PER_NAME = 5_000, 2

#: Seconds for which a queue that is missing is not asked for again, unless its name is written.
_MISSING = 60.0

#: Names that are written again together, and seconds between two looks at how far back the oldest is.
_TOGETHER, _LOOK_EVERY = 100, 60.0


class Registry:
    """The registry of one exchange, as one session sees it."""

    def __init__(self, exchange: str, publisher: Callable[[], Awaitable[Publisher]], *, patience: float) -> None:
        """`patience` is that of palermo.brokers.rabbitmq.amqp.stream.Stream."""
        self._exchange = exchange
        self._stream = Stream(
            internal(exchange, "registry"),
            publisher,
            patience=patience,
            holds="the names of the queues",
            arguments=_BOUNDS,
            copied=True,
        )
        self._patience = patience
        #: The names as `names` has read them, and goes on reading.
        self._read: Names | None = None
        self._read_from = ""
        self._reading = asyncio.Lock()
        #: By queue that is missing: its `written`, and until when it is not asked for.
        self._missing: dict[str, tuple[int, float]] = {}

    async def make(self) -> None:
        """Make the stream if it is not there."""
        await self._stream.make()

    async def add(self, queue: str) -> None:
        """Add the name for all sessions; returns once it is stored."""
        await self._stream.write({"queue": queue})

    async def remove(self, queue: str) -> None:
        """Remove the name for all sessions."""
        await self._stream.write({"gone": queue})

    async def names(self, connection: Connection) -> set[str]:
        """All names that are registered now. Raises BrokerUnavailable if the stream is down and stays so.

        The first call reads all records. The session goes on following them, so a later call costs no more the more
        queues there have ever been: `palermo web` asks every two seconds.
        """
        async with self._reading:
            if self._read is not None:
                end = await self._stream.end(connection)
                same = self._read_from == self._stream.name
                if end is not None and same and await self._read.has_come_to(end, within=self._patience):
                    return self._read.known
                await self._read.close()
                self._read = None
            names = Names(lambda _: None)
            if await names.follow(self._stream, connection):
                self._read, self._read_from = names, self._stream.name
            return names.known

    async def probe(self, connection: Connection, queues: Iterable[str]) -> dict[str, Probe]:
        """What RabbitMQ knows of these queues, for a caller that has just called `names`, and does so again and again.

        RabbitMQ logs each question about a missing queue as an error. A queue of ours is made once its name is written,
        so only one that another program makes may be seen late, by a minute.
        """
        now = time.monotonic()
        written = {queue: self._read.written(queue) if self._read is not None else 0 for queue in queues}
        self._missing = {
            queue: (seen, until)
            for queue, (seen, until) in self._missing.items()
            if now < until and seen == written.get(queue)
        }
        asked = {amqp_queue(self._exchange, queue): queue for queue in written if queue not in self._missing}
        found = {asked[name]: probe for name, probe in (await probe_all(connection, asked)).items()}
        self._missing |= {queue: (written[queue], now + _MISSING) for queue, probe in found.items() if not probe.exists}
        return {queue: found.get(queue) or Probe(exists=False) for queue in written}

    async def keep(self, connection: Connection, leads: Callable[[], bool]) -> None:
        """Write the names again whenever that is due and this session leads, until the call is cancelled."""
        while connection.error is None:
            await asyncio.sleep(_LOOK_EVERY)
            try:
                if leads():
                    await self.write_again(connection)
            except PalermoError as error:
                if connection.error is None:
                    log.warning("the names of the queues cannot be written again now error=%r", str(error))

    async def write_again(self, connection: Connection) -> int:
        """Write all names again if one is far back in the stream. Returns how many were written.

        A name whose queue does not exist is left out: the stream forgets it.
        """
        left = iter(sorted(await self.names(connection)))
        if self._read is None or not self._read.is_far_back:
            return 0
        written = 0
        while some := list(islice(left, _TOGETHER)):
            probes = await probe_all(connection, [amqp_queue(self._exchange, queue) for queue in some])
            there = [queue for queue in some if probes[amqp_queue(self._exchange, queue)].exists]
            await self._write_all(there)
            written += len(there)
        log.info("the names of the queues were written again queues=%d", written)
        return written

    async def _write_all(self, queues: Iterable[str]) -> None:
        await asyncio.gather(*(self._stream.write({"queue": queue, "again": True}) for queue in queues))

    async def follow(self, connection: Connection, changed: Callable[[set[str]], None]) -> "Names | None":
        """The names, kept up to date. Calls `changed` at every later change. None without a stream.

        Raises BrokerUnavailable if the stream is down and stays so.
        """
        names = Names(changed)
        return names if await names.follow(self._stream, connection) else None


async def follow(
    registry: Registry, connection: Connection, know: Callable[[set[str]], Awaitable[None]]
) -> "Names | None":
    """The names, kept up to date; `know` is awaited with all names at every later change."""
    await registry.make()
    tasks: set[asyncio.Task[None]] = set()

    async def learn(names: set[str]) -> None:
        with suppress(PalermoError):  # the session is lost: receive() raises that
            await know(names)

    def changed(names: set[str]) -> None:
        task = asyncio.ensure_future(learn(names))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return await registry.follow(connection, changed)


class Names:
    """The names that the registry's records add up to, from its first record on."""

    def __init__(self, changed: Callable[[set[str]], None]) -> None:
        #: By name, how many records had been read when it was written last.
        self._written: dict[str, int] = {}
        self._records = 0
        self._changed = changed
        self._follower: Follower | None = None

    @property
    def known(self) -> set[str]:
        """The names that are registered."""
        return set(self._written)

    @property
    def is_far_back(self) -> bool:
        """Whether a name was written so long ago that the stream may drop its record soon."""
        oldest = min(self._written.values(), default=self._records)
        return self._records - oldest > max(_FAR, _FAR_PER_NAME * len(self._written))

    def written(self, queue: str) -> int:
        """How many records had been read when the name was written last; 0 if it is not registered."""
        return self._written.get(queue, 0)

    async def follow(self, stream: Stream, connection: Connection) -> bool:
        """Read all records; returns whether there is a stream."""
        self._follower = await stream.follow(connection, self._on_record)
        return self._follower is not None

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call this once when the names are no longer kept up to date, for whatever reason."""
        assert self._follower is not None
        self._follower.on_close(callback)

    async def has_come_to(self, end: int, *, within: float) -> bool:
        """Whether all records up to this offset are read, after at most so many seconds."""
        return self._follower is not None and await self._follower.has_come_to(end, within=within)

    async def close(self) -> None:
        if self._follower is not None:
            await self._follower.close()

    def _on_record(self, record: Record) -> None:
        self._records += 1
        queue, before = record.get("queue"), len(self._written)
        # RabbitMQ answers no question about a name that no queue may have.
        if queue is not None:
            self._written[check_queue_name(queue)] = self._records
        self._written.pop(str(record.get("gone", "")), None)
        # A known name that another session than the leader writes means that the queue was made again, after it was
        # deleted without a record.
        if self._follower is not None and (len(self._written) != before or not record.get("again")):
            self._changed(self.known)
