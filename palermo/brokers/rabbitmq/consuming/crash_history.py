"""The crash history of a redelivered job: did its workers die, or does one still run it?

The worker compares three things: what workers wrote down (run_log.py), what they say when they are
asked, and whether the sessions of those that do not answer still exist. That takes a few
milliseconds, and never longer than a bounded wait: a job is run rather than kept waiting.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.consuming.run_log import RunLog, Seen, View, names
from palermo.contract.worker_info import WorkerInfo
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Seconds for which the answers of all workers serve other jobs too: a broker's restart redelivers thousands.
_FRESH = 1.0

#: Seconds that one look may take, and seconds without another look after one failed or took longer.
_PATIENCE, _OFF = 5.0, 30.0

#: Seconds after the begin of a session in which other workers may still be on their way back to the broker, and
#: seconds to wait for them before a second worker counts as dead.
_YOUNG, _GRACE = 30.0, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashRecord:
    """What is known of a job's earlier runs."""

    #: The ids of the workers that died of it, by key (run_log.py).
    dead: dict[str, str]
    #: The id of the worker that runs it, or knows how it ended; "" for none.
    running_at: str


_NOTHING = CrashRecord(dead={}, running_at="")


class CrashHistory:
    """Finds out the crash history of jobs, for one session of one worker."""

    def __init__(self, starts: RunLog, connection: Connection, ask: Callable[[], Awaitable[list[WorkerInfo]]]) -> None:
        """`connection` is a connection that may publish; `ask` returns the workers that answer."""
        self._starts = starts
        self._connection = connection
        self._ask = ask
        self._asking = asyncio.Lock()
        self._answers: dict[str, WorkerInfo] = {}
        self._asked_at = self._off_until = float("-inf")
        self._began_at = time.monotonic()

    async def of(self, id: str, *, now: bool = False) -> CrashRecord:
        """What is known of the job's earlier runs. Raises the session's error if that is lost.

        `now` asks the workers after this call: an answer that was given for other jobs does not serve.
        """
        if time.monotonic() < self._off_until:
            return _NOTHING
        try:
            async with asyncio.timeout(_PATIENCE):
                record = await self._look(id, now=now)
            if len(record.dead) > 1 and time.monotonic() - self._began_at < _YOUNG:
                record = await self._patiently(id, record)
            return record
        except (PalermoError, TimeoutError) as error:
            if self._connection.error is not None:
                raise self._connection.error from error
            self._off_until = time.monotonic() + _OFF
            log.warning(
                "cannot tell who ran jobs before, running them all the same for=%.0f id=%s error=%r",
                _OFF,
                id,
                str(error) or "no answer in time",
            )
            return _NOTHING

    async def _patiently(self, id: str, record: CrashRecord) -> CrashRecord:
        """Look again for a while: after a broker's restart all workers seem dead for some seconds."""
        deadline = time.monotonic() + _GRACE
        while len(record.dead) > 1 and time.monotonic() < deadline:
            await asyncio.sleep(0.5)
            async with asyncio.timeout(_PATIENCE):
                record = await self._look(id)
        return record

    async def _look(self, id: str, *, now: bool = False) -> CrashRecord:
        view = await self._starts.view()
        answers = await self._workers(now=now)
        suspects = {writer: seen for writer, seen in view.seen.items() if id in seen.runs}
        for worker in answers.values():
            # A worker shows a job at once, and writes it down a moment later.
            if worker.has(id):
                return CrashRecord(dead=self._blamed(view, id), running_at=worker.id)
        dead = self._blamed(view, id)
        running_at = ""
        for writer, seen in suspects.items():
            if writer in answers:
                continue
            if await self._is_there(seen):
                # The worker lives and does not answer: stopped, or swapped out. It may go on with the job any moment.
                running_at = seen.worker
            else:
                dead[writer] = seen.worker
        return CrashRecord(dead=dead, running_at=running_at)

    def _blamed(self, view: View, id: str) -> dict[str, str]:
        return {writer: worker for writer, worker in view.blamed.get(id, {}).items() if writer not in self._answers}

    async def _workers(self, *, now: bool) -> dict[str, WorkerInfo]:
        called_at = time.monotonic()
        async with self._asking:
            if self._asked_at < (called_at if now else called_at - _FRESH):
                asking_at = time.monotonic()
                self._answers = names(await self._ask())
                self._asked_at = asking_at
            return self._answers

    async def _is_there(self, seen: Seen) -> bool:
        """Whether a worker's session exists: its queue for questions belongs to the session alone, and dies with it."""
        return (await self._connection.probe(seen.inbox)).exists
