"""The run log, in which workers record the jobs that they run, and the crash history of redelivered jobs.

Its purpose is to detect jobs that kill their workers. The stream `~starts` holds the records. Each record names all
jobs that a worker runs, and so replaces the worker's last record. A worker writes a record before it runs a redelivered
job. Otherwise it writes at most one per tick, and only if a job has run for a while, so that short jobs cost nothing. A
worker that shuts down cleanly first records that it no longer runs a job, and then requeues the job; a worker that dies
doesn't.

A record also has the data that running jobs have saved. If the worker dies, the next worker that gets such a job reads
the data there.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from msgspec import Struct, convert, field, to_builtins

from palermo.brokers.features.gathered import Gathered
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.stream import Follower, Record, Stream
from palermo.brokers.rabbitmq.cluster.worker_control import Reports
from palermo.brokers.rabbitmq.seconds import LEFT_ALONE, PATIENCE, RARELY, STORED_WITHIN
from palermo.contract import clock
from palermo.contract.stored_records import Instant
from palermo.contract.tasks import quietly, spawn
from palermo.contract.worker_info import WorkerInfo
from palermo.core.message import Message
from palermo.core.topology import check_id, has_controls, internal
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Seconds between two checks of the running jobs, and seconds after which a running job is recorded.
TICK, AGE = 0.125, 0.2

#: Minimum seconds between two records, for each job in a record: a worker with 500 slots writes one a second.
_EACH = 0.002

#: Maximum bytes of saved data that a worker writes per second, so that the stream keeps other records.
_SAVED_RATE = 128 * 1024

#: Seconds after which running jobs are recorded again, because the stream drops its oldest records.
_AGAIN = 30.0

#: The stream's bounds in bytes. It drops a segment at a time.
_BOUNDS = {"x-max-length-bytes": 16 * 1024 * 1024, "x-stream-max-segment-size-bytes": 2 * 1024 * 1024}


def key(worker: str, since: float) -> str:
    """The key of a worker's lifetime.

    The key includes the worker's start, because a restarted container may have the same process id and host.
    """
    return f"{worker} {since!r}"


class Saved(Struct, frozen=True, array_like=True):
    """A job's saved data. Has the job's message and run too, because an id may be reused."""

    text: str
    attempt: int
    created_at: int | None

    @classmethod
    def of(cls, message: Message, text: str) -> "Saved":
        return cls(text, message.attempt, message.created_at)


class JobStart(Struct, frozen=True, array_like=True):
    """A running job in a record, without its body, to keep the records of many slots small."""

    job: str = ""
    queue: str = ""
    #: Unix seconds.
    started_at: Instant = 0.0
    preview: str | None = None


class RunRecord(Struct, omit_defaults=True):
    """The jobs that a worker runs. The record replaces the last one with the same `key`."""

    worker: str
    #: When the worker started, in Unix seconds.
    since: Instant
    #: The queue for requests to the worker, which ends with its session.
    inbox: str
    #: The ids of its jobs.
    runs: set[str]
    #: When the record was written, in Unix seconds; None if unknown.
    at: Instant | None = None
    queues: tuple[str, ...] = ()
    jobs: dict[str, JobStart] = {}
    #: By job id, the workers that died while running it: ids by key. Then, the jobs that have ended since.
    blames: dict[str, dict[str, str]] = {}
    forgets: list[str] = []
    #: The value of WorkerInfo.counters.
    counters: Any = None
    #: Saved data of jobs, by id.
    saved: dict[str, Saved] = {}

    def __post_init__(self) -> None:
        check_id(self.inbox)
        if has_controls(self.inbox):
            raise ValueError(f"{self.inbox!r} is not a queue name")

    @property
    def key(self) -> str:
        return key(self.worker, self.since)


class View(Struct):
    """The state that results from the stream's records."""

    #: The last record of each worker with jobs, by its key.
    seen: dict[str, RunRecord] = field(default_factory=dict)
    #: By job id, the workers that died while running it: ids by key.
    blamed: dict[str, dict[str, str]] = field(default_factory=dict)

    def add(self, record: Record) -> str:
        """Apply a record. Returns the key of its worker, "" for the stream's first record.

        Raises ValueError, without any effect, for a record with a wrong type, an impossible time or an invalid name.
        """
        if "worker" not in record:
            return ""
        found = convert(record, RunRecord)
        writer = found.key
        self.seen.pop(writer, None)
        if found.runs:
            self.seen[writer] = found
        # A worker that writes is alive. It had only lost its connection when it was considered dead.
        for accused in self.blamed.values():
            accused.pop(writer, None)
        for id, dead in found.blames.items():
            self.blamed.setdefault(id, {}).update(dead)
        for id in found.forgets:
            self.forget(id)
        self.blamed = {id: accused for id, accused in self.blamed.items() if accused}
        return writer

    def saved(self, message: Message) -> str | None:
        """The job's saved data in the latest record of this run, or None."""
        texts = [
            found.text
            for seen in self.seen.values()
            if (found := seen.saved.get(message.id)) is not None and found == Saved.of(message, found.text)
        ]
        return texts[-1] if texts else None

    def forget(self, id: str) -> None:
        """Drop all information about a job, after its end."""
        self.blamed.pop(id, None)
        for writer, seen in list(self.seen.items()):
            seen.runs -= {id}
            if not seen.runs:
                del self.seen[writer]


def run_log_stream(exchange: str, publisher: Callable[[], Awaitable[Publisher]]) -> Stream:
    """The stream of the run log."""
    name = internal(exchange, "starts")
    return Stream(name, publisher, patience=STORED_WITHIN, holds="the record of starts", arguments=_BOUNDS)


class RunLogReader:
    """Follows the run log while it is used."""

    def __init__(self, stream: Stream, connection: Connection, blames: dict[str, dict[str, str]]) -> None:
        """`blames` has the dead workers of jobs that run here, by job. While it isn't empty, the log is followed."""
        self._stream = stream
        self._connection = connection
        self._blames = blames
        self._view = View()
        self._follower: Follower | None = None
        self._opening = asyncio.Lock()
        #: The timer to stop following the stream when it is unused.
        self._ending: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def view(self) -> View:
        """The state from all records, kept up to date from now on. Raises BrokerUnavailable."""
        async with self._opening:
            if self._follower is None or not self._follower.is_open:
                self._view = View()
                self._follower = await self._stream.follow(self._connection, self._learn)
            self._end_later()
            return self._view

    async def close(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
        for task in self._tasks:
            task.cancel()
        if self._follower is not None:
            await self._follower.close()

    def _learn(self, record: Record) -> None:
        writer = self._view.add(record)
        # The writer was considered dead and is back, so our records must not blame it again.
        for dead in self._blames.values():
            dead.pop(writer, None)

    def _end_later(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self._ending = asyncio.get_running_loop().call_later(RARELY, self._unused)

    def _unused(self) -> None:
        if self._blames:
            self._end_later()
            return
        follower, self._follower = self._follower, None
        if follower is not None:
            spawn(self._tasks, quietly(follower.close()))


class RunLog:
    """One worker session's access to the run log."""

    def __init__(
        self,
        exchange: str,
        report: Callable[[], WorkerInfo],
        publisher: Callable[[], Awaitable[Publisher]],
        connection: Connection,
        *,
        inbox: str,
    ) -> None:
        self._stream = run_log_stream(exchange, publisher)
        self._report = report
        self.connection = connection
        self._inbox = inbox
        #: Redelivered jobs by the slot that runs them, and requeued ones while the worker's report still has them.
        self._begun: dict[int, str] = {}
        self._leaving: set[str] = set()
        #: For jobs that run here, the workers that died while running them, to be recorded again; and the jobs to drop.
        self._blames: dict[str, dict[str, str]] = {}
        self._forgets: list[str] = []
        #: Saved data of jobs that run here, by id, and whether the last record lacks some of it.
        self._saved: dict[str, Saved] = {}
        self._unsaved = False
        self._written: frozenset[str] = frozenset()
        self._written_at = 0.0
        #: This worker's duties in the last record.
        self._written_duties: tuple[str, ...] = ()
        #: Calls of `_flush` during a write share the next record.
        self._flushes = Gathered[None](self._write)
        #: The timer for the next check of the running jobs.
        self.ticking: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._complained = False
        self._closed = False
        self._reader = RunLogReader(self._stream, connection, self._blames)

    def resume(self) -> None:
        """Start a session. The previous session's record may be out of date, and only this worker can correct it."""
        report = self._report()
        if clock.now() - report.started_at > STORED_WITHIN:
            self._later()
            self.watch()

    def watch(self) -> None:
        """Start recording long jobs, unless that has started. Called for each job, and each time one is recorded.

        Does nothing without a session, since a job may start or end just after the log was closed.
        """
        if self.ticking is None and not self._closed and self.connection.error is None:
            self.ticking = asyncio.get_running_loop().call_later(TICK, self._tick)

    async def begin(self, slot: int, id: str, dead: dict[str, str]) -> None:
        """Record that this slot will run a redelivered job. Call this before the job runs."""
        self._begun[slot] = id
        self.watch()
        self._leaving.discard(id)
        if dead:
            self._blames[id] = dead
        await self._flush()

    def save(self, message: Message, text: str) -> None:
        """Include a running job's saved data in the next record."""
        self._saved[message.id] = Saved.of(message, text)
        self._unsaved = True
        self.watch()

    async def leave(self, slot: int, id: str) -> None:
        """Record that the job no longer runs here. Call this before the job is requeued."""
        self._begun.pop(slot, None)
        if id in self._written:
            self._leaving.add(id)
            try:
                async with asyncio.timeout(STORED_WITHIN):
                    await self._flush()
            except (PalermoError, TimeoutError) as error:
                self._complain(f"requeuing job {id} may count as the death of a worker", error)

    def ended(self, slot: int, id: str, *, forget: bool) -> None:
        """Record that the job is settled. With `forget`, also drops the workers that died with it, because it was not
        requeued.
        """
        if self._begun.get(slot) == id:
            del self._begun[slot]
        if self._blames.pop(id, None) and forget:
            self._forgets.append(id)
            self._later()

    async def view(self) -> View:
        """The state from all records, kept up to date from now on. Raises BrokerUnavailable."""
        return await self._reader.view()

    async def close(self) -> None:
        self._closed = True
        if self.ticking is not None:
            self.ticking.cancel()
        for task in self._tasks:
            task.cancel()
        await self._reader.close()

    def _tick(self) -> None:
        self.ticking = None
        report = self._report()
        self._drop_saved(report)
        runs = self._runs(report)
        now = time.monotonic()
        known = runs == self._written and report.duties == self._written_duties and not self._unsaved
        pause = _AGAIN if known else _EACH * len(runs)
        if self._unsaved:
            pause = max(pause, sum(len(saved.text) for saved in self._saved.values()) / _SAVED_RATE)
        if (runs or self._written) and now - self._written_at >= pause:
            self._later()
        if report.jobs or runs or self._written:
            self.watch()

    def _drop_saved(self, report: WorkerInfo) -> None:
        """Drop the saved data of jobs that no longer run here. A job that has just started is in no report yet."""
        if self._saved:
            running = {*(job.id for job in report.jobs), *self._begun.values()}
            self._saved = {id: saved for id, saved in self._saved.items() if id in running}

    def _runs(self, report: WorkerInfo) -> frozenset[str]:
        old = clock.now() - AGE
        self._leaving.intersection_update(job.id for job in report.jobs)
        return frozenset([*(job.id for job in report.jobs if job.started_at <= old), *self._begun.values()]).difference(
            self._leaving
        )

    def _later(self) -> None:
        if not self._closed:
            spawn(self._tasks, self._flush_quietly())

    async def _flush_quietly(self) -> None:
        try:
            async with asyncio.timeout(STORED_WITHIN):
                await self._flush()
            self._complained = False
        except (PalermoError, TimeoutError) as error:
            self._complain("deaths of workers are not counted", error)

    async def _flush(self) -> None:
        """Write a record of the running jobs."""
        await self._flushes.add(None)

    async def _write(self, _: Sequence[None]) -> None:
        report = self._report()
        runs = self._runs(report)
        forgets = list(self._forgets)
        self._drop_saved(report)
        record = RunRecord(
            worker=report.id,
            since=float(report.started_at),
            inbox=self._inbox,
            runs=set(runs),
            at=clock.now(),
            queues=tuple(report.queues),
            jobs={
                job.id: JobStart(job.job, job.queue, float(job.started_at), job.arguments.preview)
                for job in report.jobs
                if job.id in runs
            },
            blames={id: dead for id, dead in self._blames.items() if dead},
            forgets=forgets,
            counters=report.counters(),
            saved={id: saved for id, saved in self._saved.items() if id in runs},
        )
        self._unsaved = False
        self._written_at = time.monotonic()
        # Others may read the record before its confirm arrives. So if a job is requeued in the meantime, the next
        # record must remove it.
        self._written |= runs
        await self._stream.write(to_builtins(record))
        self._written, self._written_duties = runs, report.duties
        del self._forgets[: len(forgets)]

    def _complain(self, means: str, error: Exception) -> None:
        if not self._complained and self.connection.error is None:
            self._complained = True
            log.warning("cannot record starts of jobs, %s error=%r", means, str(error) or "no answer in time")


def names(workers: Collection[WorkerInfo]) -> dict[str, WorkerInfo]:
    """Workers by key."""
    return {key(worker.id, float(worker.started_at)): worker for worker in workers}


#: Seconds for which the workers' answers are reused for other jobs, because a broker's restart redelivers thousands.
_FRESH = 1.0

#: Seconds after the start of a session in which other workers may still be reconnecting.
_YOUNG = 30.0


class CrashRecord(Struct, frozen=True, kw_only=True):
    """The known facts about a job's earlier runs."""

    #: The workers that died while running it: ids by key.
    dead: dict[str, str]
    #: The id of the worker that runs it, or knows its end; "" for none.
    running_at: str
    #: Data that it saved after its message was stored; None for none.
    saved: str | None = None


_NOTHING = CrashRecord(dead={}, running_at="")


class CrashHistory:
    """Finds out about earlier runs of redelivered jobs, for one session of one worker."""

    def __init__(self, starts: RunLog, connection: Connection, ask: Callable[[], Awaitable[Reports]]) -> None:
        """`connection` is one that publishes; `ask` asks all workers."""
        self._starts = starts
        self._connection = connection
        self._ask = ask
        self._asking = asyncio.Lock()
        self._answers: dict[str, WorkerInfo] = {}
        self._asked_at = self._off_until = float("-inf")
        self._began_at = time.monotonic()

    async def of(self, message: Message, *, now: bool = False) -> CrashRecord:
        """The known facts about the job's earlier runs. Raises the session's error if the session is lost.

        With `now` all workers are asked again, rather than reusing answers.
        """
        if time.monotonic() < self._off_until:
            return _NOTHING
        try:
            async with asyncio.timeout(PATIENCE):
                record = await self._look(message, now=now)
            if len(record.dead) > 1 and time.monotonic() - self._began_at < _YOUNG:
                record = await self._patiently(message, record)
            return record
        except (PalermoError, TimeoutError) as error:
            if self._connection.error is not None:
                raise self._connection.error from error
            self._off_until = time.monotonic() + LEFT_ALONE
            log.warning(
                "cannot read earlier runs, running jobs anyway for=%.0f id=%s error=%r",
                LEFT_ALONE,
                message.id,
                str(error) or "no answer in time",
            )
            return _NOTHING

    async def _patiently(self, message: Message, record: CrashRecord) -> CrashRecord:
        """Check again for a while, because all workers seem dead for some seconds after a broker's restart."""
        deadline = time.monotonic() + PATIENCE
        while len(record.dead) > 1 and time.monotonic() < deadline:
            await asyncio.sleep(0.5)
            async with asyncio.timeout(PATIENCE):
                record = await self._look(message)
        return record

    async def _look(self, message: Message, *, now: bool = False) -> CrashRecord:
        id, view = message.id, await self._starts.view()
        answers = await self._workers(now=now)
        suspects = {writer: seen for writer, seen in view.seen.items() if id in seen.runs}
        for worker in answers.values():
            # A worker reports a job immediately, and records it a moment later.
            if worker.has(id):
                return CrashRecord(dead=self._blamed(view, id), running_at=worker.id)
        dead = self._blamed(view, id)
        running_at = ""
        for writer, seen in suspects.items():
            if writer in answers:
                continue
            if await self._is_there(seen):
                # The worker is connected and doesn't answer because it is stopped or swapped out. It may continue with
                # the job.
                running_at = seen.worker
            else:
                dead[writer] = seen.worker
        return CrashRecord(dead=dead, running_at=running_at, saved=view.saved(message))

    def _blamed(self, view: View, id: str) -> dict[str, str]:
        return {writer: worker for writer, worker in view.blamed.get(id, {}).items() if writer not in self._answers}

    async def _workers(self, *, now: bool) -> dict[str, WorkerInfo]:
        called_at = time.monotonic()
        async with self._asking:
            if self._asked_at < (called_at if now else called_at - _FRESH):
                asking_at = time.monotonic()
                # A silent worker with the job is found by its record, see `_look`.
                self._answers = names((await self._ask()).workers)
                self._asked_at = asking_at
            return self._answers

    async def _is_there(self, seen: RunRecord) -> bool:
        """Whether a worker's session exists. Its request queue is deleted with the session."""
        return (await self._connection.probe(seen.inbox)).exists
