"""Scheduled jobs, which wait in a sorted set by their instants until they are due.

A script decides about each job, so any number of sessions may put due jobs into their queues at once.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from msgspec.structs import replace
from redis.exceptions import ResponseError

from palermo.brokers.features import limits
from palermo.brokers.features.recurring import Recurring
from palermo.brokers.features.steps import Job, Step, Stored, text_of
from palermo.brokers.features.unique_keys import Keys, KeyStates, as_they_run, change_keys, jobs_removed, keys_of
from palermo.brokers.redis.jobs import cancelled_by, from_blob
from palermo.brokers.redis.store import Store
from palermo.contract import clock
from palermo.contract.scheduled import CANCEL, GIVE_UP, RUN, AlteredJob, OnJobs, ScheduledFilter, ScheduledPage
from palermo.core.job_edit import JobEdit
from palermo.core.lifecycle import give_up
from palermo.core.message import Message
from palermo.core.time_slots import moved_to
from palermo.core.topology import failed_queue
from palermo.errors import BrokerError

log = logging.getLogger("palermo.redis")

#: Seconds between two looks at most: the wall clock may jump, and a message between sessions may be lost.
_POLL_EVERY = 0.5

#: Seconds between two looks at least, while nothing is due.
_MIN_WAIT = 0.005

#: Seconds until the next attempt after Redis has refused something, or was too slow.
_AFTER_ERROR = 2.0

#: Jobs put into their queues, read or altered in one step.
_STEP = 500

#: Seconds between two looks for limited keys to forget, and for recurring jobs to mend.
_FORGET_EVERY, _MEND_EVERY = 5.0, 60.0


class ScheduledJobs:
    """Puts scheduled jobs into their queues, shows and changes them. See palermo.contract.scheduled.ScheduledJobs."""

    def __init__(self, store: Store, keys: Keys, recurring: Recurring) -> None:
        self._store = store
        self._keys = keys
        self._recurring = recurring
        self.is_leader = False

    async def run(self, fired: OnJobs) -> None:
        """Put jobs into their queues when they are due, until this is cancelled or the session is lost."""
        told = asyncio.Event()

        def on_message(text: bytes) -> None:
            told.set()

        await self._store.listen("bell:due", on_message)
        self.is_leader = True
        forgot = mended = -math.inf
        limit: Stored = ""
        try:
            while not self._store.ended:
                told.clear()
                looked = time.monotonic()
                try:
                    if looked - forgot > _FORGET_EVERY:
                        forgot = looked
                        limit = await limits.forget_idle(self._store, limit)
                    if looked - mended > _MEND_EVERY:
                        mended = looked
                        await self._recurring.mend(clock.now())
                    due = await self._put_in_queues(fired)
                except BrokerError as error:
                    if self._store.ended:
                        return
                    log.warning("jobs that are due wait error=%r", str(error))
                    await asyncio.sleep(_AFTER_ERROR)
                    continue
                wait = _POLL_EVERY if due is None else min(_POLL_EVERY, clock.seconds_until(due))
                try:
                    async with asyncio.timeout(wait):
                        await told.wait()
                except TimeoutError:
                    continue
                await asyncio.sleep(max(0.0, looked + _MIN_WAIT - time.monotonic()))
        finally:
            self.is_leader = False
            await self._store.unlisten("bell:due", on_message)

    async def show(self, chosen: ScheduledFilter, *, offset: int, limit: int) -> ScheduledPage:
        """A page of the chosen jobs, and how many there are."""
        if chosen.everything:
            total = int(await self._store.call("ZCARD", self._store.key("later")))
            numbers = await self._store.call("ZRANGE", self._store.key("later"), offset, offset + limit - 1)
            found = [message for _, message in await self._messages(numbers if limit else [])]
        else:
            matching = [message async for _, message in self._chosen(chosen)]
            total, found = len(matching), matching[offset : offset + limit]
        messages = tuple(await as_they_run(self._store, found))
        return ScheduledPage(messages=messages, total=total, cancelled=await self._cancelled(found))

    async def alter(
        self,
        chosen: ScheduledFilter,
        action: str,
        at: float | None,
        *,
        failed_per_queue: bool = False,
        edit: JobEdit | None = None,
    ) -> list[AlteredJob]:
        """Change the chosen jobs that exist when this begins, in steps.

        `edit` is for "move": it changes more of the jobs than their instant.
        """
        altered: dict[str, AlteredJob] = {}
        last = self._store.count(await self._store.call("GET", self._store.key("number")), "number")
        some: list[tuple[str, Message]] = []

        async def step() -> None:
            for message in await self._alter(some, action, at, failed_per_queue=failed_per_queue, edit=edit):
                found = AlteredJob(id=message.id, job=message.job, queue=message.queue, run_at=message.run_at or 0.0)
                altered.setdefault(message.id, found)
            some.clear()

        async for number, message in self._chosen(chosen):
            if int(number) <= last:
                some.append((number, message))
            if len(some) >= _STEP:
                await step()
        await step()
        return sorted(altered.values(), key=lambda one: one.run_at)

    async def _put_in_queues(self, fired: OnJobs) -> float | None:
        """Put into their queues all that is due now; returns when the next is due, None for never."""
        while True:
            now = clock.wall_clock()
            problem, *instants = await self._store.run("due", repr(now), _STEP)
            if problem:
                error = self._store.translated(ResponseError(text_of(problem)))
                log.warning("jobs that are due wait a minute error=%r", str(error))
            jobs, keys, recurring = (float(one) if one else None for one in instants)
            if keys is not None and keys <= now:
                await self._keys.publish_due(now)
            if recurring is not None and recurring <= now:
                fired(await self._recurring.fire(now))
            due = min((one for one in (jobs, keys, recurring) if one is not None), default=None)
            if due is None or due > now:
                return due
            await asyncio.sleep(0)

    async def _alter(
        self,
        some: Sequence[tuple[str, Message]],
        action: str,
        at: float | None,
        *,
        failed_per_queue: bool,
        edit: JobEdit | None,
    ) -> list[Message]:
        """Change these jobs; returns those that were there."""
        now = clock.wall_clock()
        if action == GIVE_UP:
            messages = await as_they_run(self._store, [message for _, message in some])
            some = [(number, message) for (number, _), message in zip(some, messages, strict=True)]

        def step(number: str, message: Message) -> Step:
            if action == CANCEL:
                return ("remove_later", number, False)
            if action == GIVE_UP:
                given_up = give_up(message)
                job = Job(given_up, failed_queue(given_up.queue, per_queue=failed_per_queue))
            elif edit is not None:
                job = Job(edit.applied_to(message))
            else:
                instant = now if action == RUN or at is None else at
                job = Job(moved_to(message, instant))
            return ("remove_later", number, job)

        frees = action in (CANCEL, GIVE_UP)
        plain = [one for one in some if not frees or not keys_of([one[1]])]
        answers = await self._store.change((), [step(*one) for one in plain]) if plain else []
        done = [message for (_, message), was_there in zip(plain, answers, strict=True) if was_there]
        for number, message in (one for one in some if frees and keys_of([one[1]])):
            if await self._alter_keyed(number, message, step(number, message)):
                done.append(message)
        return done

    async def _alter_keyed(self, number: str, message: Message, step: Step) -> bool:
        """Change a job together with its key; returns whether the job was there."""
        place = await self._store.call("HGET", self._store.key("later-places"), number)
        if place is None:
            return False

        def decide(states: KeyStates) -> None:
            jobs_removed(states, [message])

        conditions: list[Step] = [("field", "later-places", number, place)]
        names = keys_of([message])
        return not await change_keys(self._store, names, decide, conditions=conditions, changes=[step])

    async def _chosen(self, chosen: ScheduledFilter) -> AsyncIterator[tuple[str, Message]]:
        """The numbers and messages that the filter matches, soonest first."""
        rest = replace(chosen, ids=None, due=chosen.due)
        if chosen.ids is not None and len(chosen.ids) <= _STEP:
            found = await self._messages(await self._numbers_of(sorted(chosen.ids)))
            for one in sorted(found, key=lambda one: (one[1].run_at or 0.0, int(one[0]))):
                if rest.matches(one[1]):
                    yield one
            return
        low, high = chosen.due if chosen.due is not None else ("-inf", "+inf")
        # All numbers at the start: jobs come and go while this reads.
        numbers = await self._store.call("ZRANGEBYSCORE", self._store.key("later"), low, high)
        for first in range(0, len(numbers), _STEP):
            for one in await self._messages(numbers[first : first + _STEP]):
                if chosen.matches(one[1]):
                    yield one

    async def _numbers_of(self, ids: Sequence[str]) -> list[bytes]:
        """The numbers of the scheduled jobs with these ids."""
        key = self._store.key("later-ids")
        found = await asyncio.gather(*(self._store.call("ZRANGEBYLEX", key, f"[{id}\0", f"({id}\x01") for id in ids))
        return [member.rpartition(b"\0")[2] for members in found for member in members]

    async def _messages(self, numbers: Sequence[bytes]) -> list[tuple[str, Message]]:
        """The jobs with these numbers that are still there."""
        if not numbers:
            return []
        blobs: Sequence[Any] = await self._store.call("HMGET", self._store.key("jobs"), *numbers)
        return [
            (number.decode(), from_blob(blob, None))
            for number, blob in zip(numbers, blobs, strict=True)
            if blob is not None
        ]

    async def _cancelled(self, found: Sequence[Message]) -> frozenset[str]:
        if not found:
            return frozenset()
        marks = await self._store.call("HMGET", self._store.key("cancels"), *(one.id for one in found))
        return frozenset(one.id for one, mark in zip(found, marks, strict=True) if cancelled_by(mark, one) is not None)
