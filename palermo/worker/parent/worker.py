"""A worker, from its first broker session to its last job.

Each slot has a task that takes a job, runs it and settles it (slot_task.py). Another task keeps the broker session
open. If the session is lost, running jobs finish, but their results are dropped because the broker has already requeued
the jobs. The worker ends when it is stopped, when a burst finds its queues empty, or when the pool can't run jobs any
more.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, assert_never

from msgspec.structs import replace

from palermo.client.recorded_jobs import RecordedArguments
from palermo.client.recorder import Recorder
from palermo.contract import clock
from palermo.contract.broker import Broker, Consumer
from palermo.contract.tasks import spawn
from palermo.contract.worker_info import WorkerInfo
from palermo.core.journal_records import JournalLevel
from palermo.core.queue_selection import QueueSelection
from palermo.core.text import count
from palermo.core.topology import worker_tag
from palermo.core.version import VERSION
from palermo.worker.options import WorkerOptions
from palermo.worker.parent.broker_session import BrokerSession, BrokerSessions
from palermo.worker.parent.job_events import JobEvents
from palermo.worker.parent.orders import Orders, StackDumps
from palermo.worker.parent.outcomes import AdoptedJobs, Outcomes
from palermo.worker.parent.queue_hooks import EmptyQueues, keep_pace
from palermo.worker.parent.serving import Serving
from palermo.worker.parent.session_duties import SessionDuties
from palermo.worker.parent.shutdown import (
    EXIT_TIMEOUT,
    FORCED,
    SETTLE_TIMEOUT,
    UNREACHABLE,
    RestartReason,
    Shutdown,
)
from palermo.worker.parent.slot_task import SlotTask
from palermo.worker.parent.watchdog import StallWatchdog
from palermo.worker.parent.worker_state import WorkerState
from palermo.worker.pools.pool import Pool
from palermo.worker.process import Title, parent_title
from palermo.worker.registered import Registered
from palermo.worker.signals import Action, SignalRow

log = logging.getLogger("palermo.worker")


class Worker:
    """A worker in the caller's event loop. It doesn't change the process: no signal handlers, title or exit."""

    def __init__(
        self,
        options: WorkerOptions,
        pool: Pool,
        registered: Registered,
        *,
        host: str,
        pid: int,
        show_title: Callable[[str], None],
    ) -> None:
        """`show_title` shows the worker's state in process listings."""
        selection = options.queues or QueueSelection(registered.queues)
        self._about = WorkerInfo(
            id=f"pid:{pid}@{host}",
            host=host,
            pid=pid,
            queues=selection.written,
            slots=options.concurrency,
            state="starting",
            started_at=clock.now(),
            version=VERSION,
            release=options.settings.release,
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        self._spawn = partial(spawn, self._tasks)
        self._title = Title(self._describe, partial(asyncio.get_running_loop().call_later, 0.05), show=show_title)
        arguments = RecordedArguments(options.settings, registered.parameters.get)
        job_events = JobEvents(
            Recorder(JournalLevel(options.settings.journal), self._about.id, arguments=arguments.fields)
        )
        self._shutdown = Shutdown(options, pool, stop_taking=lambda: self._serving.stop(), finish=self._finish)
        self._duties = SessionDuties(options, registered, job_events.recurring_published)
        sessions = BrokerSessions(
            replace(options.settings.session("worker"), prioritized=registered.prioritized, takes=True),
            give_up=options.burst,
            consume=self._consume,
            opened=self._on_session_open,
            lost=self._title.update,
            ending=self._on_session_end,
        )
        self.shared = WorkerState(
            options=options,
            selection=selection,
            registered=registered,
            pool=pool,
            sessions=sessions,
            outcomes=Outcomes(),
            adopted_jobs=AdoptedJobs(
                self._about.id,
                sessions=sessions,
                stopping=self._shutdown.begun,
                job_events=job_events,
                failed_per_queue=options.settings.failed_per_queue,
                own_outcome=lambda id: self._orders.outcome(id),
            ),
            job_events=job_events,
            stopping=self._shutdown.begun,
            on_change=self._title.update,
            on_failure=self._duties.job_failed,
        )
        self._slots = [SlotTask(n, worker_tag(pid, host, n), self.shared) for n in range(1, options.concurrency + 1)]
        pool.on_report = lambda number, report: self._slots[number - 1].progress.add(report)
        self._serving = Serving(self._slots, self.shared, slot_lost=self._shutdown.give_up)
        self._empty_queues = EmptyQueues(self.shared, self._serving, self._shutdown)
        self._stack_dumps = StackDumps(pool, self._slots)
        self._orders = Orders(self.shared, self._slots, self._stack_dumps, act=self.order, state=lambda: self.state)

    async def run(self) -> int | RestartReason:
        """Work until the end. Returns the exit code or the reason to restart.

        Raises StoreInvalid, UrlInvalid or BrokerRefused if the first session can't be opened.
        """
        log.info(
            "worker started id=%s queues=%s slots=%d broker=%s",
            self._about.id,
            self.shared.selection,
            len(self._slots),
            self.shared.options.settings.address,
        )
        self._title.update()
        job_events, sessions = self.shared.job_events, self.shared.sessions
        job_events.worker_started(self.report())
        # a signal may have arrived before
        if self._serving.allowed:
            self._serving.start()
        watchdog = StallWatchdog(self.shared, idle=self._serving.idle, give_up=self._shutdown.give_up)
        self._spawn(watchdog.run())
        if self.shared.options.burst or "queue_empty" in self.shared.registered.hooks:
            self._spawn(self._empty_queues.run())
        if "queue_size" in self.shared.registered.hooks:
            self._spawn(keep_pace(self.shared))
        session_task = self._spawn(sessions.keep_open())
        gone = self._spawn(self.shared.pool.gone.wait())
        code: int | RestartReason
        end = self._shutdown.end
        try:
            await asyncio.wait({session_task, gone, end}, return_when=asyncio.FIRST_COMPLETED)
            if session_task.done():
                session_task.result()
                code = UNREACHABLE
                self._serving.stop()
            elif not end.done() and not self._shutdown.killed:
                # The running jobs crashed with the template, and are settled as crashed.
                self._serving.stop()
                await self._serving.wait(SETTLE_TIMEOUT)
                code = FORCED if self._shutdown.final else RestartReason.TEMPLATE_DIED
            else:
                code = await end
            await job_events.worker_ended(self.report(), code)
        finally:
            await self._close()
            await self._exit_hook()
        return code

    def log_end(self) -> None:
        """Write the worker's last log line, after its processes have ended."""
        shared = self.shared
        log.info("worker stopped id=%s processed=%d failed=%d", self._about.id, shared.processed, shared.failed)

    def act(self, row: SignalRow) -> None:
        """Handle a signal."""
        resumes = row.action is Action.RESUME
        action = "none" if resumes and not self._serving.paused else row.action.value
        log.info("signal received signal=%s action=%s", row.name, action)
        if resumes and self._serving.quiet:
            log.info("worker remains quiet until it exits or `palermo control resume` is run")
        busy = self.shared.busy
        if row.action is Action.INTERRUPT and busy and not self.shared.stopping.is_set():
            log.warning("finishing %s and ending; press Ctrl-C again to kill running jobs", count(busy, "running job"))
        self.order(row.action)

    def order(self, action: Action) -> None:
        """Execute the action of a signal or an order."""
        serving, stopping = self._serving, self.shared.stopping.is_set()
        match action:
            case Action.KILL_JOBS:
                self.shared.pool.kill_jobs()
            case Action.DUMP:
                self._spawn(self._stack_dumps.log())
            case Action.QUIET:
                serving.quiet = True
                self._serving.stop()
            case Action.PAUSE:
                if not serving.paused and not stopping:
                    serving.paused = True
                    self._serving.stop()
                    self._spawn(self.shared.hook("before_pause"))
            case Action.WAKE:
                if not stopping:
                    serving.quiet = False
                    self._resume()
            case Action.RESUME:
                if serving.paused and not stopping:
                    self._resume()
            case Action.RENEW | Action.FINISH | Action.STOP | Action.INTERRUPT | Action.ABANDON:
                self._shutdown.obey(action)
            case _:
                assert_never(action)

    def report(self) -> WorkerInfo:
        """Describe this worker for listings."""
        shared, slots, session = self.shared, self._slots, self.shared.sessions.current
        return replace(
            self._about,
            state=self.state,
            processed=shared.processed,
            failed=shared.failed,
            jobs=tuple(job for slot in slots for job in slot.jobs),
            outcomes=shared.outcomes.lost,
            permits=tuple(slot.demand for slot in slots if slot.demand is not None and slot.permitted),
            asks=tuple(slot.demand for slot in slots if slot.demand is not None and not slot.permitted),
            duties=() if session is None else session.broker.duties,
        )

    @property
    def state(self) -> str:
        """The worker's state, one of palermo.contract.worker_info.STATES."""
        if self.shared.stopping.is_set():
            return "stopping"
        if self._serving.quiet:
            return "quiet"
        if self._serving.paused:
            return "paused"
        if self.shared.busy:
            return "working"
        return "starting" if self.shared.sessions.current is None else "idle"

    # Taking jobs

    def _resume(self) -> None:
        if self._serving.paused:
            self._serving.paused = False
            self._spawn(self.shared.hook("after_pause"))
        if not self._serving.quiet:
            self._serving.start()

    async def _finish(self) -> None:
        await self._serving.wait()
        await self.shared.adopted_jobs.wait()
        await self.shared.hook("shutdown")

    # The session with the broker

    async def _consume(self, broker: Broker) -> Consumer:
        await self._duties.prepare(broker)
        return await broker.consume(
            self.shared.selection,
            slots=len(self._slots),
            tag=self._about.id,
            report=self.report,
            on_command=self._orders.obey,
            prefetch=1 if self.shared.registered.batches else self.shared.options.prefetch,
        )

    def _on_session_open(self, session: BrokerSession) -> None:
        self.shared.job_events.recorder.attach(session.broker.journal)
        self._title.update()
        self._duties.begin(session.broker)
        self.shared.may_be_empty.set()

    async def _on_session_end(self, broker: Broker) -> None:
        await self._duties.end()
        await self.shared.job_events.session_ends(broker)

    # Hooks, background tasks, title, end

    async def _exit_hook(self) -> None:
        """Run the worker_exit hooks after the session is closed. A hanging hook is killed."""
        try:
            await asyncio.wait_for(self.shared.hook("worker_exit"), EXIT_TIMEOUT)
        except TimeoutError:
            log.error("worker_exit hook is still running after %.0f s, killing it", EXIT_TIMEOUT)
            self.shared.pool.kill()

    def _describe(self) -> str:
        busy = sum(slot.busy for slot in self._slots)
        return parent_title(state=self.state, queues=str(self.shared.selection), busy=busy, slots=len(self._slots))

    async def _close(self) -> None:
        self._shutdown.close()
        self.shared.adopted_jobs.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await self._serving.close()
        await asyncio.gather(*tasks, return_exceptions=True)
