"""Parts of crowded time slots: the leader divides the jobs that it moves into one time slot.

RabbitMQ hands a queue out from its front alone: to read 100,000 jobs takes some ten seconds. So once a time slot has
PART jobs, those that come go into parts of it that last a minute, once such a part is full into parts of ten seconds,
and so on. A page is in few parts of each length, and no index is needed to know that: the numbers of jobs say which
parts come before it. The leader indexes each job as it moves it into a part, so that a look for some ids reads nothing,
and a change of a job reads its part.

A time slot with CROWD jobs is opened early. Nothing is copied more often for that: the leader moves each job once a
level in any case.
"""

import asyncio
from collections.abc import Collection

from palermo.brokers.rabbitmq.amqp.messages import Got
from palermo.brokers.rabbitmq.publishing.job_destinations import DelayQueues
from palermo.brokers.rabbitmq.scheduling.slot_index import SlotIndexes
from palermo.core.time_slots import DIVIDED, TimeSlot, in_ms

#: The most jobs of a part, and the jobs that make a time slot a crowd.
PART, CROWD = 2_000, 5_000


class SlotParts:
    """The time slots that one leader moves jobs into, and their parts."""

    def __init__(self, delay_queues: DelayQueues, names: set[str], indexes: SlotIndexes) -> None:
        """`names` are those of all time slots that have a queue; each that is made here is added."""
        self._delay_queues = delay_queues
        self._names = names
        self._indexes = indexes
        #: How many jobs each time slot of the level DIVIDED, and each part, has been given.
        self._given: dict[TimeSlot, int] = {}
        #: The time slot and the millisecond of the last job, and where it went.
        self._last: tuple[TimeSlot, int, TimeSlot] | None = None
        #: Held while jobs are moved, by one time slot at a time: jobs that are due are published in between.
        self.turn = asyncio.Lock()

    async def place(self, time_slot: TimeSlot, due: float) -> TimeSlot:
        """Where a job of this time slot goes that is due then; its queue has been made."""
        if time_slot.level != DIVIDED:
            if not self._delay_queues.has(time_slot):
                await self._make(time_slot)
            return time_slot
        # Fast path: of the jobs that are due together only the first is asked through all parts.
        last, part = self._last, time_slot
        if last is not None and last[:2] == (time_slot, in_ms(due)):
            part = last[2]
        while (given := self._given.get(part)) is None or given >= PART:
            if given is None:
                self._given[part] = await self._count(part)
            else:
                part = part.next_part(due)
        self._given[part] += 1
        self._last = time_slot, in_ms(due), part
        return part

    async def _count(self, part: TimeSlot) -> int:
        """How many jobs are there, since the leader before may have filled it. Its queue is made if it is missing."""
        # Before the queue: the leader reads what has a queue and no index.
        begun = part.part > 0 and not self._indexes.knows(part)
        if begun:
            self._indexes.begin(part)
        await self._make(part)
        count = (await self._delay_queues.counts([part], settle=False)).get(part, 0)
        if begun and count:
            self._indexes.forget(part)
        return count

    async def _make(self, place: TimeSlot) -> None:
        await self._delay_queues.ensure(place)
        self._names.add(str(place))

    def moved(self, jobs: Collection[tuple[Got, TimeSlot]], source: TimeSlot) -> None:
        """Note that these jobs have left the time slot `source`, each for where it is now."""
        self._indexes.remove([source], {str(got.properties.message_id) for got, _ in jobs})
        for got, place in jobs:
            if place.part:
                self._indexes.add(place, got)

    def forget(self, place: TimeSlot) -> None:
        """Note that this time slot, or part of one, is over or has lost its queue."""
        self._delay_queues.forget(place)
        self._given.pop(place, None)
        self._last = None
