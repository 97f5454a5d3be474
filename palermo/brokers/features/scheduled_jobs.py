"""Scheduled jobs: moves them to their queues when they are due, lists and changes them.

Moving a job is one step, so any number of sessions may do this concurrently.
"""

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from typing import Any

from palermo.brokers.features import limits
from palermo.brokers.features.pauses_and_cancels import cancelled
from palermo.brokers.features.recurring import Recurring
from palermo.brokers.features.steps import Job, Step, StepStore, Stored
from palermo.brokers.features.sweep import remove_jobs
from palermo.brokers.features.unique_keys import Keys, KeyStates, as_they_run, change_keyed, jobs_moved, keys_of
from palermo.brokers.features.workflows import Workflows
from palermo.contract import clock
from palermo.contract.scheduled import CANCEL, GIVE_UP, RUN, AlteredJob, OnJobs, ScheduledFilter, ScheduledPage
from palermo.contract.tasks import wait_for_any
from palermo.core.due_times import moved_to
from palermo.core.job_edit import JobEdit
from palermo.core.lifecycle import give_up
from palermo.core.message import Message
from palermo.core.topology import failed_queue
from palermo.core.workflow import step_of
from palermo.core.workflow_rules import How
from palermo.errors import BrokerError

log = logging.getLogger("palermo.broker")

#: Maximum seconds between two checks: the wall clock may jump, and a message between sessions may get lost.
_POLL_EVERY = 0.5

#: Minimum seconds between two checks while nothing is due.
_MIN_WAIT = 0.01

#: Seconds until the next attempt after a change was refused or timed out.
_AFTER_ERROR = 2.0

#: Number of jobs moved, read or changed in one step.
_STEP = 500

#: Seconds between two checks for unused limited keys, and for recurring jobs to repair.
_FORGET_EVERY, _MEND_EVERY = 5.0, 60.0


class ScheduledJobs:
    """Moves scheduled jobs to their queues, lists and changes them. See palermo.contract.scheduled.ScheduledJobs."""

    def __init__(self, store: StepStore, keys: Keys, recurring: Recurring, workflows: Workflows) -> None:
        self._store = store
        self._workflows = workflows
        self._keys = keys
        self._recurring = recurring
        self.is_leader = False

    async def run(self, fired: OnJobs) -> None:
        """Move jobs to their queues when they are due, until cancelled or the session is lost."""
        notified = asyncio.Event()

        def on_message(text: bytes = b"") -> None:
            notified.set()

        await self._store.listen("bell:due", on_message)
        self.is_leader = True
        forgot = mended = -math.inf
        limit: Stored = ""
        try:
            while not self._store.ended:
                notified.clear()
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
                    log.warning("cannot move due jobs to their queues error=%r", str(error))
                    await asyncio.sleep(_AFTER_ERROR)
                    continue
                wait = _POLL_EVERY if due is None else min(_POLL_EVERY, clock.seconds_until(due))
                await wait_for_any(notified, timeout=wait)
                if notified.is_set():
                    await asyncio.sleep(max(0.0, looked + _MIN_WAIT - time.monotonic()))
        finally:
            self.is_leader = False
            await self._store.unlisten("bell:due", on_message)

    async def show(self, chosen: ScheduledFilter, *, offset: int, limit: int) -> ScheduledPage:
        """A page of the matching jobs, and their number."""
        found, total = await self._store.later_page(chosen, offset, limit)
        messages = tuple(await as_they_run(self._store, found))
        return ScheduledPage(messages=messages, total=total, cancelled=await cancelled(self._store, found))

    async def alter(
        self,
        chosen: ScheduledFilter,
        action: str,
        at: float | None,
        *,
        failed_per_queue: bool = False,
        edit: JobEdit | None = None,
    ) -> list[AlteredJob]:
        """Change the matching jobs that exist at the start, in steps.

        With "move", `edit` can change more than the due time.
        """
        altered: dict[str, AlteredJob] = {}
        some: list[tuple[Any, Message]] = []

        async def step() -> None:
            for message in await self._alter(some, action, at, failed_per_queue=failed_per_queue, edit=edit):
                found = AlteredJob(id=message.id, job=message.job, queue=message.queue, run_at=message.run_at or 0.0)
                altered.setdefault(message.id, found)
            some.clear()

        async for one in self._store.later(chosen):
            some.append(one)
            if len(some) >= _STEP:
                await step()
        await step()
        return sorted(altered.values(), key=lambda one: one.run_at)

    async def _put_in_queues(self, fired: OnJobs) -> float | None:
        """Move everything that is due to its queue; returns when the next is due, None for never."""
        while True:
            now = clock.wall_clock()
            jobs, keys, recurring, workflows = await self._store.put_due(now, _STEP)
            if keys is not None and keys <= now:
                await self._keys.publish_due(now)
            if recurring is not None and recurring <= now:
                fired(await self._recurring.fire(now))
            if workflows is not None and workflows <= now:
                await self._workflows.pass_time(now)
            due = min((one for one in (jobs, keys, recurring, workflows) if one is not None), default=None)
            if due is None or due > now:
                return due
            await asyncio.sleep(0)

    async def _alter(
        self,
        some: Sequence[tuple[Any, Message]],
        action: str,
        at: float | None,
        *,
        failed_per_queue: bool,
        edit: JobEdit | None,
    ) -> list[Message]:
        """Change these jobs; returns those that still existed."""
        instant = clock.wall_clock() if action == RUN or at is None else at
        if action == GIVE_UP:
            messages = await as_they_run(self._store, [message for _, message in some])
            some = [(number, message) for (number, _), message in zip(some, messages, strict=True)]

        def moved(message: Message) -> Message:
            return moved_to(message, instant) if edit is None else edit.applied_to(message)

        def step(number: Any, message: Message) -> Step:
            if action == CANCEL:
                return ("remove_later", number, False)
            if action == GIVE_UP:
                job = Job(give_up(message), failed_queue(message.queue, per_queue=failed_per_queue))
            else:
                job = Job(moved(message))
            return ("remove_later", number, job)

        def keys_moved(states: KeyStates, messages: Sequence[Message]) -> None:
            jobs_moved(states, map(moved, messages))

        frees = action in (CANCEL, GIVE_UP)

        def is_plain(message: Message) -> bool:
            """Whether the change concerns neither a key nor a step."""
            return not keys_of([message]) and not (frees and step_of(message.extra))

        changes = [(one, ("scheduled", number), step(number, one)) for number, one in some if not is_plain(one)]
        if frees:
            how = How.FAILED if action == GIVE_UP else How.CANCELLED
            gone = await remove_jobs(self._store, self._workflows, changes, how=how)
        else:
            gone = await change_keyed(self._store, changes, keys_moved)
        plain = [one for one in some if is_plain(one[1])]
        answers = await self._store.change((), [step(*one) for one in plain]) if plain else []
        return gone + [message for (_, message), was_there in zip(plain, answers, strict=True) if was_there]
