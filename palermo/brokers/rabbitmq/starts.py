"""What workers run, as they wrote it down: how a job is known whose workers die with it.

The stream `~starts` holds records in which a worker names all that it runs, so each record
replaces the last one of the same worker. One is written before a job is run that was handed
out before, and otherwise at most one per tick, naming the jobs that have run for a while:
short jobs are never written down, and cost nothing. A worker that leaves in good order has
named its last job as gone before it gives that back; one that died never will.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import field

from palermo.brokers.rabbitmq.link import Link
from palermo.brokers.rabbitmq.publisher import Publisher
from palermo.brokers.rabbitmq.stream import Follower, Record, Stream
from palermo.core.topology import internal
from palermo.core.values import dataclass
from palermo.crew import WorkerInfo
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Seconds between two looks at what runs, and how long a job has run when it is written down.
TICK, AGE = 0.125, 0.2

#: Seconds between two records, at least, for each job that one names: a worker of 500 slots writes one a second.
_EACH = 0.002

#: Seconds after which what still runs is written again, since the stream forgets its oldest records.
_AGAIN = 30.0

#: The stream's bounds in bytes; it forgets a segment at a time.
_BOUNDS = {"x-max-length-bytes": 16 * 1024 * 1024, "x-stream-max-segment-size-bytes": 2 * 1024 * 1024}

#: Seconds that reading waits for a stream that is down, and that a record which says what has ended may take.
_PATIENCE, _LAST_WORDS = 3.0, 2.0

#: Seconds without a question after which the stream is no longer followed.
_UNUSED = 60.0


def key(worker: str, since: float) -> str:
    """One life of a worker: a container that is started again has the same process id on the same host."""
    return f"{worker} {since!r}"


@dataclass(slots=True)
class Seen:
    """What a worker wrote last."""

    worker: str
    #: Its queue for questions, which lasts as long as its session.
    inbox: str
    runs: frozenset[str]


@dataclass(slots=True)
class View:
    """What the stream says by now."""

    #: By worker, as `key` names it; those that run nothing are left out.
    seen: dict[str, Seen] = field(default_factory=dict)
    #: By job: the workers that someone found dead, with their ids.
    blamed: dict[str, dict[str, str]] = field(default_factory=dict)

    def add(self, record: Record) -> str:
        """Learn a record; who wrote it, "" for one that cannot be read, which is left out."""
        match record:
            case {"worker": str(worker), "since": float(since), "inbox": str(inbox), "runs": list(runs)}:
                writer = key(worker, since)
            case _:
                return ""
        self.seen.pop(writer, None)
        if runs:
            self.seen[writer] = Seen(worker, inbox, frozenset(map(str, runs)))
        # Whoever writes lives: it had only lost its connection when it was found dead.
        for accused in self.blamed.values():
            accused.pop(writer, None)
        match record:
            case {"blames": dict(blames), "forgets": list(forgets)}:
                for id, workers in blames.items():
                    self.blamed.setdefault(str(id), {}).update(workers if isinstance(workers, dict) else {})
                for id in forgets:
                    self.forget(str(id))
        self.blamed = {id: accused for id, accused in self.blamed.items() if accused}
        return writer

    def forget(self, id: str) -> None:
        """The job has ended: what it did before is no longer held against it."""
        self.blamed.pop(id, None)
        for writer, seen in list(self.seen.items()):
            seen.runs -= {id}
            if not seen.runs:
                del self.seen[writer]


class Starts:
    """The record of starts, as one session of one worker keeps and reads it."""

    def __init__(
        self,
        exchange: str,
        report: Callable[[], WorkerInfo],
        publisher: Callable[[], Awaitable[Publisher]],
        link: Link,
        *,
        inbox: str,
    ) -> None:
        name = internal(exchange, "starts")
        self._stream = Stream(name, publisher, patience=_PATIENCE, holds="the record of starts", arguments=_BOUNDS)
        self._report = report
        self.link = link
        self._inbox = inbox
        #: The jobs that were handed out before and are run here, by slot; and those that were given back, for as long
        #: as the worker's report goes on naming them.
        self._begun: dict[int, str] = {}
        self._leaving: set[str] = set()
        #: The workers that died of jobs which are run here, to be written again; and the jobs to forget.
        self._blames: dict[str, dict[str, str]] = {}
        self._forgets: list[str] = []
        self._written: frozenset[str] = frozenset()
        self._written_at = 0.0
        self._wanted = self._stored = 0
        self._writing = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._ticking: asyncio.TimerHandle | None = None
        self._closing: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._view = View()
        self._follower: Follower | None = None
        self._complained = False

    def resume(self) -> None:
        """A session begins. What the last one wrote may be out of date, and nobody else can put it right."""
        report = self._report()
        if time.time() - report.started_at > _PATIENCE:
            self._later()
            self.watch()

    def watch(self) -> None:
        """A job was handed out: it is written down if it takes long."""
        if self._ticking is None:
            self._ticking = asyncio.get_running_loop().call_later(TICK, self._tick)

    async def begin(self, slot: int, id: str, dead: dict[str, str]) -> None:
        """Write down, before it is run, that this slot runs a job which was handed out before."""
        self._begun[slot] = id
        self._leaving.discard(id)
        if dead:
            self._blames[id] = dead
        await self._flush()

    async def leave(self, slot: int, id: str) -> None:
        """Write down that the job is not run here any more, before it is given back."""
        self._begun.pop(slot, None)
        if id in self._written:
            self._leaving.add(id)
            try:
                async with asyncio.timeout(_LAST_WORDS):
                    await self._flush()
            except (PalermoError, TimeoutError) as error:
                self._complain(f"giving job {id} back may count as the death of a worker", error)

    def ended(self, slot: int, id: str, *, forget: bool) -> None:
        """The job is settled; `forget` what is held against it, unless it was given back."""
        if self._begun.get(slot) == id:
            del self._begun[slot]
        if self._blames.pop(id, None) and forget:
            self._forgets.append(id)
            self._later()

    async def view(self) -> View:
        """What all workers have written by now, and from now on. Raises BrokerUnavailable."""
        async with self._reading:
            if self._follower is None or not self._follower.is_open:
                self._view = View()
                self._follower = await self._stream.follow(self.link, lambda record: self._learn(record))
            if self._closing is not None:
                self._closing.cancel()
            if self._follower is not None:
                self._closing = asyncio.get_running_loop().call_later(_UNUSED, self._unused)
            return self._view

    async def close(self) -> None:
        for timer in (self._ticking, self._closing):
            if timer is not None:
                timer.cancel()
        for task in self._tasks:
            task.cancel()
        if self._follower is not None:
            await self._follower.close()

    # Writing.

    def _tick(self) -> None:
        self._ticking = None
        report = self._report()
        runs = self._runs(report)
        now = time.monotonic()
        pause = _AGAIN if runs == self._written else _EACH * len(runs)
        if (runs or self._written) and now - self._written_at >= pause:
            self._later()
        if report.jobs or runs or self._written:
            self.watch()

    def _runs(self, report: WorkerInfo) -> frozenset[str]:
        old = time.time() - AGE
        self._leaving.intersection_update(job.id for job in report.jobs)
        return frozenset([*(job.id for job in report.jobs if job.started_at <= old), *self._begun.values()]).difference(
            self._leaving
        )

    def _later(self) -> None:
        task = asyncio.ensure_future(self._flush_quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _flush_quietly(self) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._flush()
            self._complained = False
        except (PalermoError, TimeoutError) as error:
            self._complain("a worker that dies now is not counted", error)

    async def _flush(self) -> None:
        """Write what runs now; who comes while a record is on its way shares the next one with all others who did."""
        self._wanted += 1
        mine = self._wanted
        async with self._writing:
            if self._stored >= mine:
                return
            wanted = self._wanted
            report = self._report()
            runs = self._runs(report)
            forgets = list(self._forgets)
            record = {
                "worker": report.id,
                "since": float(report.started_at),
                "inbox": self._inbox,
                "runs": sorted(runs),
                "blames": {id: dead for id, dead in self._blames.items() if dead},
                "forgets": forgets,
            }
            self._written_at = time.monotonic()
            await self._stream.write(record)
            self._written, self._stored = runs, wanted
            del self._forgets[: len(forgets)]

    def _complain(self, means: str, error: Exception) -> None:
        if not self._complained and self.link.error is None:
            self._complained = True
            log.warning("record of starts cannot be written, %s error=%r", means, str(error) or "no answer in time")

    # Reading.

    def _learn(self, record: Record) -> None:
        writer = self._view.add(record)
        # Found dead, and back: it is not to be blamed again by what this worker writes.
        for dead in self._blames.values():
            dead.pop(writer, None)

    def _unused(self) -> None:
        if self._blames:
            self._closing = asyncio.get_running_loop().call_later(_UNUSED, self._unused)
            return
        follower, self._follower = self._follower, None
        if follower is not None:
            task = asyncio.ensure_future(follower.close())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


def names(workers: Collection[WorkerInfo]) -> dict[str, WorkerInfo]:
    """Workers by key."""
    return {key(worker.id, float(worker.started_at)): worker for worker in workers}
