"""The run log, in which workers record the jobs that they run; and what it tells about a job that was redelivered.

So a job that kills its workers is recognized.

The stream `~starts` holds the records. Each names all jobs that a worker runs, so it replaces the worker's
last one. A worker writes a record before it runs a job that was handed out before, and otherwise at most one
per tick, with the jobs that have run for a while: short jobs are never written down, and cost nothing. A worker
that stops in good order writes that its last job is gone before it gives it back; a worker that died never does.

A record also has what running jobs have saved for their next runs. The worker that gets a job after its worker's death
reads it there.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from msgspec import Struct, convert, field, to_builtins

from palermo.brokers.rabbitmq.amqp.connection import STORED_WITHIN, Connection, quietly
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.stream import Follower, Record, Stream
from palermo.brokers.rabbitmq.cluster.worker_control import Reports
from palermo.contract import clock
from palermo.contract.stored_records import Instant
from palermo.contract.tasks import spawn
from palermo.contract.worker_info import WorkerInfo
from palermo.core.message import Message
from palermo.core.topology import check_id, has_controls, internal
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Seconds between two checks of what runs, and how long a job has run when it is written down.
TICK, AGE = 0.125, 0.2

#: The least seconds between two records, for each job that one names: a worker of 500 slots writes one a second.
_EACH = 0.002

#: The most bytes per second that one worker writes of what its jobs have saved, so that the stream keeps other records.
_SAVED_RATE = 128 * 1024

#: Seconds after which jobs that still run are written again, since the stream drops its oldest records.
_AGAIN = 30.0

#: The stream's bounds in bytes; it drops one segment at a time.
_BOUNDS = {"x-max-length-bytes": 16 * 1024 * 1024, "x-stream-max-segment-size-bytes": 2 * 1024 * 1024}

#: Seconds without a call of `view` after which the stream is no longer followed.
_UNUSED = 60.0


def key(worker: str, since: float) -> str:
    """The key of one life of a worker: a restarted container has the same process id on the same host."""
    return f"{worker} {since!r}"


class Saved(Struct, frozen=True, array_like=True):
    """What a job had saved, and which run of which message that was: an id may be used again."""

    text: str
    attempt: int
    created_at: int | None

    @classmethod
    def of(cls, message: Message, text: str) -> "Saved":
        return cls(text, message.attempt, message.created_at)


class JobStart(Struct, frozen=True, array_like=True):
    """What a record says about a running job. A worker of many slots writes many of these, so a body is left out."""

    job: str = ""
    queue: str = ""
    #: Unix seconds.
    started_at: Instant = 0.0
    preview: str | None = None


class RunRecord(Struct, omit_defaults=True):
    """One record: what a worker runs. It replaces the last one of the same `key`."""

    worker: str
    #: When the worker started, in Unix seconds.
    since: Instant
    #: The queue by which it is asked, which lasts as long as its session.
    inbox: str
    #: The ids of its jobs.
    runs: set[str]
    #: When it wrote the record; None if the record doesn't say.
    at: Instant | None = None
    queues: tuple[str, ...] = ()
    jobs: dict[str, JobStart] = {}
    #: By job, the ids of the workers that it found dead, by their keys; and the jobs that have ended since.
    blames: dict[str, dict[str, str]] = {}
    forgets: list[str] = []
    #: What WorkerInfo.counters returned.
    counters: Any = None
    #: What jobs had saved, by id.
    saved: dict[str, Saved] = {}

    def __post_init__(self) -> None:
        check_id(self.inbox)
        if has_controls(self.inbox):
            raise ValueError(f"{self.inbox!r} names no queue")

    @property
    def key(self) -> str:
        return key(self.worker, self.since)


class View(Struct):
    """The state that the stream's records add up to."""

    #: The last record of each worker, by its key; workers that run nothing are left out.
    seen: dict[str, RunRecord] = field(default_factory=dict)
    #: By job: the ids of the workers that were found dead, by their keys.
    blamed: dict[str, dict[str, str]] = field(default_factory=dict)

    def add(self, record: Record) -> str:
        """Apply a record. Returns the key of the worker that wrote it, "" for the first record of the stream.

        Raises ValueError for a record with another type of value, an impossible time or name, and ignores all of it.
        """
        if "worker" not in record:
            return ""
        found = convert(record, RunRecord)
        writer = found.key
        self.seen.pop(writer, None)
        if found.runs:
            self.seen[writer] = found
        # A worker that writes is alive: it had only lost its connection when it was found dead.
        for accused in self.blamed.values():
            accused.pop(writer, None)
        for id, dead in found.blames.items():
            self.blamed.setdefault(id, {}).update(dead)
        for id in found.forgets:
            self.forget(id)
        self.blamed = {id: accused for id, accused in self.blamed.items() if accused}
        return writer

    def saved(self, message: Message) -> str | None:
        """What the job has saved by the latest record of this run; None for nothing."""
        texts = [
            found.text
            for seen in self.seen.values()
            if (found := seen.saved.get(message.id)) is not None and found == Saved.of(message, found.text)
        ]
        return texts[-1] if texts else None

    def forget(self, id: str) -> None:
        """Drop all that is known of a job, because it has ended."""
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
    """Follows the run log while somebody asks for it."""

    def __init__(self, stream: Stream, connection: Connection, blames: dict[str, dict[str, str]]) -> None:
        """`blames` are the dead workers of jobs that run here, by job. While there are any, the log is followed."""
        self._stream = stream
        self._connection = connection
        self._blames = blames
        self._view = View()
        self._follower: Follower | None = None
        self._opening = asyncio.Lock()
        #: Ends the following, once it is unused.
        self._ending: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def view(self) -> View:
        """The records of all workers, kept up to date from now on. Raises BrokerUnavailable."""
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
        # The writer was found dead and is back: our records must not blame it again.
        for dead in self._blames.values():
            dead.pop(writer, None)

    def _end_later(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self._ending = asyncio.get_running_loop().call_later(_UNUSED, self._unused)

    def _unused(self) -> None:
        if self._blames:
            self._end_later()
            return
        follower, self._follower = self._follower, None
        if follower is not None:
            spawn(self._tasks, quietly(follower.close()))


class RunLog:
    """The run log, as one session of one worker writes and reads it."""

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
        #: The jobs that were handed out before and run here, by slot; and those that were given back, as long as the
        #: worker's report still names them.
        self._begun: dict[int, str] = {}
        self._leaving: set[str] = set()
        #: The dead workers of jobs that run here, which are written again; and the jobs to forget.
        self._blames: dict[str, dict[str, str]] = {}
        self._forgets: list[str] = []
        #: What jobs that run here have saved, by id; and whether the last record lacks some of it.
        self._saved: dict[str, Saved] = {}
        self._unsaved = False
        self._written: frozenset[str] = frozenset()
        self._written_at = 0.0
        #: The duties that this worker has by the last record.
        self._written_duties: tuple[str, ...] = ()
        self._wanted = self._stored = 0
        self._writing = asyncio.Lock()
        #: The timer of the next look at the jobs that run, set by `watch`.
        self.ticking: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._complained = False
        self._reader = RunLogReader(self._stream, connection, self._blames)

    def resume(self) -> None:
        """Begin a session. The last session's record may be out of date, and only this worker can correct it."""
        report = self._report()
        if clock.now() - report.started_at > STORED_WITHIN:
            self._later()
            self.watch()

    def watch(self) -> None:
        """Watch the jobs that run, from the first one handed out: those that take long are written down.

        Without a session nothing can be written, and a job may be handed out just after the log was closed.
        """
        if self.ticking is None and self.connection.error is None:
            self.ticking = asyncio.get_running_loop().call_later(TICK, self._tick)

    async def begin(self, slot: int, id: str, dead: dict[str, str]) -> None:
        """Write down that this slot runs a job that was handed out before; call it before the job runs."""
        self._begun[slot] = id
        self._leaving.discard(id)
        if dead:
            self._blames[id] = dead
        await self._flush()

    def save(self, message: Message, text: str) -> None:
        """Have the next record say what a job that runs here has saved."""
        self._saved[message.id] = Saved.of(message, text)
        self._unsaved = True

    async def leave(self, slot: int, id: str) -> None:
        """Write down that the job no longer runs here; call it before the job is given back."""
        self._begun.pop(slot, None)
        if id in self._written:
            self._leaving.add(id)
            try:
                async with asyncio.timeout(STORED_WITHIN):
                    await self._flush()
            except (PalermoError, TimeoutError) as error:
                self._complain(f"giving job {id} back may count as the death of a worker", error)

    def ended(self, slot: int, id: str, *, forget: bool) -> None:
        """Note that the job is settled; `forget` its dead workers, unless it was given back."""
        if self._begun.get(slot) == id:
            del self._begun[slot]
        if self._blames.pop(id, None) and forget:
            self._forgets.append(id)
            self._later()

    async def view(self) -> View:
        """The records of all workers, kept up to date from now on. Raises BrokerUnavailable."""
        return await self._reader.view()

    async def close(self) -> None:
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
        """Forget what jobs have saved that do not run here any more. One that began just now is in no record yet."""
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
        spawn(self._tasks, self._flush_quietly())

    async def _flush_quietly(self) -> None:
        try:
            async with asyncio.timeout(STORED_WITHIN):
                await self._flush()
            self._complained = False
        except (PalermoError, TimeoutError) as error:
            self._complain("a worker that dies now is not counted", error)

    async def _flush(self) -> None:
        """Write what runs now. All calls that come while one record is being written share the next record."""
        self._wanted += 1
        mine = self._wanted
        async with self._writing:
            if self._stored >= mine:
                return
            wanted = self._wanted
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
            # Others may read the record before its confirm is here: a job given back meanwhile has to be written off.
            self._written |= runs
            await self._stream.write(to_builtins(record))
            self._written, self._written_duties, self._stored = runs, report.duties, wanted
            del self._forgets[: len(forgets)]

    def _complain(self, means: str, error: Exception) -> None:
        if not self._complained and self.connection.error is None:
            self._complained = True
            log.warning("record of starts cannot be written, %s error=%r", means, str(error) or "no answer in time")


def names(workers: Collection[WorkerInfo]) -> dict[str, WorkerInfo]:
    """Workers by key."""
    return {key(worker.id, float(worker.started_at)): worker for worker in workers}


#: Seconds for which the answers of all workers serve other jobs too: a broker's restart redelivers thousands.
_FRESH = 1.0

#: Seconds that one look may take, and seconds without another look after one failed or took longer.
_LOOK_PATIENCE, _OFF = 5.0, 30.0

#: Seconds after the begin of a session in which other workers may still be on their way back to the broker, and
#: seconds to wait for them before a second worker counts as dead.
_YOUNG, _GRACE = 30.0, 5.0


class CrashRecord(Struct, frozen=True, kw_only=True):
    """What is known of a job's earlier runs."""

    #: The ids of the workers that died of it, by key (run_log.py).
    dead: dict[str, str]
    #: The id of the worker that runs it, or knows how it ended; "" for none.
    running_at: str
    #: What it has saved since its message was stored; None for nothing.
    saved: str | None = None


_NOTHING = CrashRecord(dead={}, running_at="")


class CrashHistory:
    """Finds out the crash history of jobs, for one session of one worker."""

    def __init__(self, starts: RunLog, connection: Connection, ask: Callable[[], Awaitable[Reports]]) -> None:
        """`connection` is a connection that may publish; `ask` asks all workers."""
        self._starts = starts
        self._connection = connection
        self._ask = ask
        self._asking = asyncio.Lock()
        self._answers: dict[str, WorkerInfo] = {}
        self._asked_at = self._off_until = float("-inf")
        self._began_at = time.monotonic()

    async def of(self, message: Message, *, now: bool = False) -> CrashRecord:
        """What is known of the job's earlier runs. Raises the session's error if that is lost.

        `now` asks the workers after this call: an answer that was given for other jobs does not serve.
        """
        if time.monotonic() < self._off_until:
            return _NOTHING
        try:
            async with asyncio.timeout(_LOOK_PATIENCE):
                record = await self._look(message, now=now)
            if len(record.dead) > 1 and time.monotonic() - self._began_at < _YOUNG:
                record = await self._patiently(message, record)
            return record
        except (PalermoError, TimeoutError) as error:
            if self._connection.error is not None:
                raise self._connection.error from error
            self._off_until = time.monotonic() + _OFF
            log.warning(
                "cannot tell who ran jobs before, running them anyway for=%.0f id=%s error=%r",
                _OFF,
                message.id,
                str(error) or "no answer in time",
            )
            return _NOTHING

    async def _patiently(self, message: Message, record: CrashRecord) -> CrashRecord:
        """Look again for a while: after a broker's restart all workers seem dead for some seconds."""
        deadline = time.monotonic() + _GRACE
        while len(record.dead) > 1 and time.monotonic() < deadline:
            await asyncio.sleep(0.5)
            async with asyncio.timeout(_LOOK_PATIENCE):
                record = await self._look(message)
        return record

    async def _look(self, message: Message, *, now: bool = False) -> CrashRecord:
        id, view = message.id, await self._starts.view()
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
        return CrashRecord(dead=dead, running_at=running_at, saved=view.saved(message))

    def _blamed(self, view: View, id: str) -> dict[str, str]:
        return {writer: worker for writer, worker in view.blamed.get(id, {}).items() if writer not in self._answers}

    async def _workers(self, *, now: bool) -> dict[str, WorkerInfo]:
        called_at = time.monotonic()
        async with self._asking:
            if self._asked_at < (called_at if now else called_at - _FRESH):
                asking_at = time.monotonic()
                # One that does not answer and has the job is known by its record: see `_look`.
                self._answers = names((await self._ask()).workers)
                self._asked_at = asking_at
            return self._answers

    async def _is_there(self, seen: RunRecord) -> bool:
        """Whether a worker's session exists: its queue for questions belongs to the session alone, and dies with it."""
        return (await self._connection.probe(seen.inbox)).exists
