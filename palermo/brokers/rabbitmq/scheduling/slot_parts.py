"""Parts of crowded time slots: the leader divides the jobs that it moves into one time slot.

RabbitMQ hands a queue out from its front alone: to read 100,000 jobs takes some ten seconds. So a part has at most PART
jobs, and the leader indexes each job as it moves it. A look reads nothing then, and a change of a job reads its part.

A time slot with CROWD jobs is opened early. Nothing is copied more often for that: the leader moves each job once a
level in any case.
"""

import asyncio
from collections.abc import Collection

from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp.messages import Got
from palermo.brokers.rabbitmq.scheduling.slot_index import SlotIndexes
from palermo.core.time_slots import TimeSlot

#: The most jobs of a part, and the jobs that make a time slot a crowd.
PART, CROWD = 2_000, 5_000


class SlotParts:
    """The parts that one leader fills."""

    def __init__(self, names: set[str], indexes: SlotIndexes) -> None:
        """`names` are those of all time slots that have a queue; each that is made here is added."""
        self._names = names
        self._indexes = indexes
        #: How many jobs were given a part, by time slot. Parts of earlier leaders count as full.
        self._given: dict[TimeSlot, int] = {}
        #: Held while jobs are moved, by one time slot at a time: jobs that are due are published in between.
        self.turn = asyncio.Lock()

    def next(self, time_slot: TimeSlot) -> TimeSlot:
        """Where the next job of this time slot goes: the time slot itself at first, then a part of it."""
        if time_slot.shortest:
            return time_slot
        given = self._given.get(time_slot)
        if given is None:
            there = max((one.part for one in self._parts_of(time_slot)), default=0)
            given = PART * (there + 1) if there else 0
        self._given[time_slot] = given + 1
        part = replace(time_slot, part=given // PART)
        if part.part and given % PART == 0:
            self._indexes.begin(part)
        return part

    def made(self, time_slot: TimeSlot) -> None:
        """Note that this time slot, or part of one, has a queue now."""
        self._names.add(str(time_slot))

    def moved(self, jobs: Collection[tuple[Got, TimeSlot]], source: TimeSlot) -> None:
        """Note that these jobs have left the time slot `source`, each for where it is now."""
        self._indexes.remove([source], {str(got.properties.message_id) for got, _ in jobs})
        for got, place in jobs:
            if place.part:
                self._indexes.add(place, got)

    def forget(self, time_slot: TimeSlot) -> None:
        """Note that this time slot is over."""
        self._given.pop(time_slot, None)

    def _parts_of(self, time_slot: TimeSlot) -> list[TimeSlot]:
        found = [TimeSlot.parse(name, time_slot.begins) for name in self._names]
        return [one for one in found if replace(one, part=0) == time_slot]
