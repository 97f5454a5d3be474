"""Publishes scheduled jobs when they are due, for the leader, and lists and changes them.

The leader holds the jobs of near time slots (due_jobs.py). It spreads the jobs of a farther time slot over shorter ones
when that time slot comes near (due_jobs.py). Each job is published and confirmed before it is acknowledged, so a
kill at any instant loses none, and doubles at most the jobs that were being confirmed.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from palermo.brokers.rabbitmq.amqp.connection import Connection, together
from palermo.brokers.rabbitmq.browsing.sweep import AsTheyRun
from palermo.brokers.rabbitmq.publishing.job_destinations import DelayQueues
from palermo.brokers.rabbitmq.publishing.name_list import NameList
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.brokers.rabbitmq.scheduling.due_jobs import DelayReader, DueJobs, FarReader, NearReader
from palermo.brokers.rabbitmq.scheduling.scheduled_listing import ScheduledListing
from palermo.contract.clock import wall_clock
from palermo.contract.scheduled import MOVE, RUN, AlteredJob, ScheduledFilter, ScheduledPage
from palermo.core.job_edit import JobEdit
from palermo.core.message import Message
from palermo.core.time_slots import KEPT_AFTER_END, TimeSlot
from palermo.errors import PalermoError

#: Seconds between two checks which time slots come near or are over.
_LOOK_EVERY = 0.5

#: Time slots that come near within this many seconds are opened before a request reads others, which may take as long.
_AHEAD = 60.0


class ScheduledJobs:
    """The scheduled jobs of one exchange, in the leader."""

    def __init__(
        self,
        exchange: str,
        connection: Connection,
        outbox: Outbox,
        leaving: Callable[[list[Message]], Awaitable[object]],
        as_they_run: AsTheyRun,
        *,
        publishes: bool,
    ) -> None:
        """Without `publishes` no job is published because it is due. For the others see ScheduledListing."""
        self._exchange = exchange
        self._connection = connection
        self._outbox = outbox
        self.due_jobs = DueJobs(connection, outbox.open, outbox.destinations, now=wall_clock)
        self._publishes = publishes
        self._now = wall_clock
        self._readers: dict[str, DelayReader] = {}
        #: The names of the time slots that this leader has ever opened.
        self._seen: set[str] = set()
        #: The names of the time slots that are left alone, since a request reads them.
        self._reading: set[str] = set()
        #: Locks: one to open time slots, one to show or change scheduled jobs.
        self._opening = asyncio.Lock()
        self._listing_turn = asyncio.Lock()
        self._news = asyncio.Event()
        self._scheduled_listing = ScheduledListing(exchange, connection, outbox, leaving, as_they_run)
        self._delay_queues: DelayQueues = outbox.delay_queues
        self._slot_names: NameList[str] = NameList(
            self._delay_queues.names,
            connection,
            outbox.open,
            parse=lambda name: str(TimeSlot.parse(name, 0.0)),
            plain=str,
            news=lambda _: self._news.set(),
        )

    async def begin(self) -> None:
        """Read which time slots there are, and open those that are near."""
        await self._slot_names.read()
        if self._publishes:
            await self._look(self._now())

    async def close(self) -> None:
        """Publish no more, once what is on its way is stored; may be cancelled."""
        await together(self.due_jobs.close(), self._end_spreading())

    async def run(self) -> None:
        """Publish jobs when they are due, until the call is cancelled. Raises the connection's error."""
        while True:
            self._news.clear()
            # Again, since there may have been no list yet, or somebody deleted it.
            await self._slot_names.read()
            await self._look(self._now())
            await self._slot_names.tidy()
            self._scheduled_listing.indexes.forget_unused()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY):
                    await self._news.wait()

    async def _end_spreading(self) -> None:
        """Spread no more, and wait for the jobs that are on their way: the next leader would spread them again."""
        with suppress(PalermoError):
            await asyncio.gather(*(reader.leave() for reader in self._take_far_readers()))

    # -- opening and closing time slots

    async def _look(self, now: float) -> None:
        async with self._opening:
            for name in sorted(self._slot_names.names - self._reading):
                time_slot = TimeSlot.parse(name, now)
                reader = self._readers.get(name)
                if reader is not None and reader.closed:
                    del self._readers[name]
                    reader = None
                # Each shortest one is opened once at least: one that begins later may hold jobs that are long overdue.
                wanted = time_slot.opens <= now or (time_slot.shortest and name not in self._seen)
                if reader is None and wanted:
                    await self._open(name, time_slot)
                elif reader is not None and not reader.held and self._is_over(time_slot, now):
                    await self._end(name, time_slot, reader)

    @staticmethod
    def _is_over(time_slot: TimeSlot, now: float) -> bool:
        # Names of shortest time slots come round again: when one is over, its name already stands for the next one.
        return time_slot.opens > now if time_slot.shortest else time_slot.ends + KEPT_AFTER_END < now

    async def _open(self, name: str, time_slot: TimeSlot) -> None:
        reader: DelayReader
        if time_slot.shortest:
            reader = NearReader(self._exchange, self._connection, time_slot, self.due_jobs)
        else:
            reader = FarReader(
                self._exchange,
                self._connection,
                time_slot,
                self._outbox.open,
                self._delay_queues,
                self._slot_names.names,
                self.due_jobs,
            )
        self._readers[name] = reader
        self._seen.add(name)
        self._scheduled_listing.indexes.forget(time_slot)
        await reader.open()
        if reader.closed:
            # Someone deleted its queue. A session that makes it again lists it again.
            self._slot_names.names.discard(name)
            self._readers.pop(name, None)

    async def _end(self, name: str, time_slot: TimeSlot, reader: DelayReader) -> None:
        """Stop reading a time slot that is over. Delete the queue of a long one, unless a job has come into it."""
        await reader.leave()
        self._readers.pop(name, None)
        self._scheduled_listing.indexes.forget(time_slot)
        if time_slot.shortest:
            return
        self._delay_queues.forget(time_slot)
        # First: a session that makes the queue again lists it after the deletion, maybe before RabbitMQ answers.
        self._slot_names.names.discard(name)
        gone = False
        try:
            gone = await self._delay_queues.delete(time_slot)
        finally:
            if gone:
                self._seen.discard(name)
            else:
                self._slot_names.names.add(name)

    # -- showing and changing them

    @property
    def progress(self) -> tuple[int, int] | None:
        """How many jobs the current `page` has read, and how many it reads; None without one."""
        return self._scheduled_listing.progress

    async def page(self, chosen: ScheduledFilter, *, offset: int, limit: int) -> ScheduledPage:
        """See palermo.contract.scheduled.ScheduledJobs.scheduled."""
        async with self._listing_turn, self._untouched() as lying:
            try:
                return await self._scheduled_listing.browse(
                    chosen, offset=offset, limit=limit, held=self.due_jobs.jobs(), lying=lying
                )
            finally:
                self._scheduled_listing.progress = None

    async def alter(self, chosen: ScheduledFilter, action: str, at: float | None, *, apart: bool) -> list[AlteredJob]:
        """See palermo.contract.scheduled.ScheduledJobs.alter_scheduled; `apart` is its failed_per_queue."""
        instant = self._now() if action == RUN or at is None else at
        async with self._listing_turn, self._untouched() as lying:
            return await self._scheduled_listing.alter(
                chosen, action, instant, held=self.due_jobs, lying=lying, apart=apart
            )

    async def edit(self, id: str, edit: JobEdit) -> list[AlteredJob]:
        """See palermo.contract.scheduled.ScheduledJobs.edit_scheduled."""
        chosen, at = ScheduledFilter(ids=frozenset({id})), edit.run_at or self._now()
        async with self._listing_turn, self._untouched() as lying:
            return await self._scheduled_listing.alter(chosen, MOVE, at, held=self.due_jobs, lying=lying, edit=edit)

    @asynccontextmanager
    async def _untouched(self) -> AsyncIterator[Mapping[TimeSlot, int]]:
        """The time slots whose jobs stay in their queues while the block runs, and how many jobs each has.

        Before that the leader opens the time slots that are due soon, and stops all spreading.
        """
        now = self._now()
        try:
            async with self._opening:
                far = self._take_far_readers()
                self._reading = {name for name in self._slot_names.names if not TimeSlot.parse(name, now).shortest}
            # Without the lock: the queue of a crowd answers late, and shortest time slots are opened meanwhile.
            await asyncio.gather(*(reader.leave() for reader in far))
            async with self._opening:
                # One more may have been opened, for a name that is new.
                await asyncio.gather(*(reader.leave() for reader in self._take_far_readers()))
                names = set(self._slot_names.names)
                for name in sorted(names - self._readers.keys()):
                    time_slot = TimeSlot.parse(name, now)
                    if self._publishes and time_slot.shortest and time_slot.opens <= now + _AHEAD:
                        await self._open(name, time_slot)
                await asyncio.gather(*(reader.caught_up() for reader in self._readers.values()))
                # A name that came since then is opened at its time: its jobs must not wait until the block has ended.
                self._reading = names - set(self._readers)
            yield await self._delay_queues.counts(TimeSlot.parse(name, now) for name in sorted(self._reading))
        finally:
            self._reading = set()
            self._news.set()

    def _take_far_readers(self) -> list[FarReader]:
        """Take out all readers that move jobs to shorter time slots; the caller ends them."""
        far = {name: reader for name, reader in self._readers.items() if isinstance(reader, FarReader)}
        for name in far:
            del self._readers[name]
        return list(far.values())
