"""What became of a job that was handed out before: did its workers die, or does one still run it?

Three things are compared: what workers wrote down (starts.py), what they say when they are
asked, and whether the sessions of those that do not answer still exist. All of it takes a few
milliseconds, and never longer than a bounded wait: a job is run rather than kept waiting.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from palermo.brokers.rabbitmq.link import Link
from palermo.brokers.rabbitmq.starts import Seen, Starts, View, names
from palermo.brokers.rabbitmq.translate import RESOURCE_LOCKED
from palermo.core.values import dataclass
from palermo.crew import WorkerInfo
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Seconds that an answer of all workers serves for other jobs too: a broker's restart hands out thousands again.
_FRESH = 1.0

#: Seconds that all of it may take, and for which it is not tried again when it took longer.
_PATIENCE, _OFF = 5.0, 30.0

#: Seconds after the begin of a session in which others may still be on their way back to the broker, and how long
#: they are waited for before a second worker counts as dead.
_YOUNG, _GRACE = 30.0, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What is known of a job's earlier runs."""

    #: The workers that died of it: ids, by key.
    dead: dict[str, str]
    #: The id of the worker that runs it, or knows how it ended; "" for none.
    running_at: str


_NOTHING = Story(dead={}, running_at="")


class Past:
    """Looks into the past of jobs, for one session of one worker."""

    def __init__(self, starts: Starts, link: Link, ask: Callable[[], Awaitable[list[WorkerInfo]]]) -> None:
        """`link` is one that may publish; `ask` gives the workers that answer."""
        self._starts = starts
        self._link = link
        self._ask = ask
        self._asking = asyncio.Lock()
        self._answers: dict[str, WorkerInfo] = {}
        self._asked_at = self._off_until = float("-inf")
        self._began_at = time.monotonic()

    async def of(self, id: str) -> Story:
        """What is known of the job. Raises the session's error if that is lost."""
        if time.monotonic() < self._off_until:
            return _NOTHING
        try:
            async with asyncio.timeout(_PATIENCE):
                story = await self._look(id)
            if len(story.dead) > 1 and time.monotonic() - self._began_at < _YOUNG:
                story = await self._patiently(id, story)
            return story
        except (PalermoError, TimeoutError) as error:
            if self._link.error is not None:
                raise self._link.error from error
            self._off_until = time.monotonic() + _OFF
            log.warning(
                "cannot tell who ran jobs before, running them all the same for=%.0f id=%s error=%r",
                _OFF,
                id,
                str(error) or "no answer in time",
            )
            return _NOTHING

    async def _patiently(self, id: str, story: Story) -> Story:
        """Look again for a while: after a broker's restart all workers seem dead for some seconds."""
        deadline = time.monotonic() + _GRACE
        while len(story.dead) > 1 and time.monotonic() < deadline:
            await asyncio.sleep(0.5)
            async with asyncio.timeout(_PATIENCE):
                story = await self._look(id)
        return story

    async def _look(self, id: str) -> Story:
        view = await self._starts.view()
        answers = await self._workers()
        suspects = {writer: seen for writer, seen in view.seen.items() if id in seen.runs}
        for worker in answers.values():
            if id in worker.outcomes:
                return Story(dead=self._blamed(view, id), running_at=worker.id)
        dead = self._blamed(view, id)
        running_at = ""
        for writer, seen in suspects.items():
            found = answers.get(writer)
            if found is not None:
                if any(job.id == id for job in found.jobs):
                    running_at = found.id
            elif await self._is_there(seen):
                # It lives and does not answer: stopped, or swapped out. It may go on with the job at any moment.
                running_at = seen.worker
            else:
                dead[writer] = seen.worker
        return Story(dead=dead, running_at=running_at)

    def _blamed(self, view: View, id: str) -> dict[str, str]:
        return {writer: worker for writer, worker in view.blamed.get(id, {}).items() if writer not in self._answers}

    async def _workers(self) -> dict[str, WorkerInfo]:
        async with self._asking:
            if time.monotonic() - self._asked_at > _FRESH:
                self._answers = names(await self._ask())
                self._asked_at = time.monotonic()
            return self._answers

    async def _is_there(self, seen: Seen) -> bool:
        """Whether the session of a worker exists: its queue for questions belongs to it alone, and dies with it."""
        channel = await self._link.channel()
        try:
            await channel.call(channel.raw.queue_declare, seen.inbox, passive=True)
        except PalermoError:
            if channel.missing or channel.code == RESOURCE_LOCKED:
                return not channel.missing
            raise
        finally:
            await channel.close()
        return True
