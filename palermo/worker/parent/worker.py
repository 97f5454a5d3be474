"""One worker, from its first session with the broker to its last job.

Each slot has a task that takes a job, has it run and settles it (slot_task.py). Another task keeps the session
with the broker open. When the session is lost, running jobs finish, and the worker drops their results, because
the broker has given the jobs back already. The worker ends when it is told to, when a burst finds its queues empty,
or when the pool cannot run jobs any more.
"""

import asyncio
import itertools
import logging
import random
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any, assert_never

from msgspec.structs import replace

from palermo.client.failed_queues import FailedRetention
from palermo.client.recorded_jobs import RecordedArguments
from palermo.client.recorder import Recorder
from palermo.contract import clock
from palermo.contract.broker import Broker, Consumer
from palermo.contract.events import Subscription
from palermo.contract.worker_info import WorkerInfo
from palermo.core.journal_records import JournalLevel
from palermo.core.lifecycle import Cancelled, Interrupted, Raised, Result, Retrying
from palermo.core.limits import PutAside
from palermo.core.message import Message
from palermo.core.prefetch import NO_PREFETCH
from palermo.core.queue_selection import QueueSelection
from palermo.core.text import count
from palermo.core.topology import worker_tag
from palermo.core.version import VERSION
from palermo.errors import BrokerError, PalermoError
from palermo.worker.options import WorkerOptions
from palermo.worker.parent.adopted_jobs import AdoptedJobs
from palermo.worker.parent.broker_session import BrokerSession, BrokerSessions, backoff, check_cancelled
from palermo.worker.parent.job_events import JobEvents
from palermo.worker.parent.leader_duties import LeaderDuties
from palermo.worker.parent.orders import Orders
from palermo.worker.parent.outcomes import RefusedResults
from palermo.worker.parent.queue_size_watch import QueueSizeWatch
from palermo.worker.parent.shutdown import (
    EXIT_TIMEOUT,
    FORCED,
    SETTLE_TIMEOUT,
    UNREACHABLE,
    RestartReason,
    Shutdown,
)
from palermo.worker.parent.slot_task import SlotTask
from palermo.worker.parent.stacks import StackDumps
from palermo.worker.parent.watchdog import IdleWatch, StallWatchdog, count_pending, is_drained
from palermo.worker.pools.pool import Pool
from palermo.worker.registered import Registered
from palermo.worker.signals import Action, SignalRow

log = logging.getLogger("palermo.worker")

#: The least seconds between two process titles: an idle worker sets none, a busy one 20 a second.
_TITLE_EVERY = 0.05

#: Seconds that it waits before it takes jobs until its unique jobs are announced.
_ANNOUNCE_TIMEOUT = 1.0


class Worker:
    """One worker, in the event loop of its caller. It does nothing to the process: no signal, no title, no exit."""

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
        """`show_title` shows the state of the worker to people who list processes."""
        self._options = options
        self._selection = options.queues or QueueSelection(registered.queues)
        self._hooks, self._subscriptions = registered.hooks, registered.subscriptions
        self._jobs, self._unique_jobs = registered.jobs, registered.unique
        self._announcing: asyncio.Task[None] | None = None
        self._host, self._pid = host, pid
        self._id = f"pid:{pid}@{host}"
        self._started_at = clock.now()
        self._processed = self._failed = self._busy = 0
        self.taken = 0
        self._paused = self._quiet = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._title: asyncio.TimerHandle | None = None
        self._set_title = show_title
        self._failed_retention = FailedRetention(options.settings)
        self._retention_timer: asyncio.TimerHandle | None = None
        self._idle_watch: IdleWatch | None = None
        if options.burst or "queue_empty" in registered.hooks:
            self._idle_watch = IdleWatch(
                idle=self._idle, count_pending=self._count_pending, on_empty=self._on_queues_empty
            )
        self.pace = 0.0
        self._size_watch: QueueSizeWatch | None = None
        if "queue_size" in registered.hooks:
            self._size_watch = QueueSizeWatch(sizes=self._queue_sizes, on_sizes=self._on_queue_sizes)
        self._stall_watchdog = StallWatchdog(self)
        arguments = RecordedArguments(options.settings, registered.parameters.get)
        recorder = Recorder(JournalLevel(options.settings.journal), self._id, arguments=arguments.fields)
        self.job_events = JobEvents(recorder)
        self.pool = pool
        self.taking = True
        self.put_aside = PutAside()
        self.failed_per_queue = options.settings.failed_per_queue
        self.max_deaths = options.settings.max_deaths
        self.batches, self.defaults = registered.batches, registered.defaults
        self._shutdown = Shutdown(options, pool, stop_taking=self._stop_taking, finish=self._finish)
        self.stopping = self._shutdown.begun
        self._dump: asyncio.Task[None] | None = None
        self.sessions = BrokerSessions(
            replace(options.settings.session("worker"), prioritized=registered.prioritized, takes=True),
            give_up=options.burst,
            duties=LeaderDuties.of(options, registered, self.job_events.recurring_published),
            consume=self._consume,
            opened=self._on_session_open,
            lost=self._on_session_lost,
            ending=self.job_events.session_ends,
        )
        self._slots = [SlotTask(n, worker_tag(pid, host, n), self) for n in range(1, options.concurrency + 1)]
        pool.on_report = lambda number, report: self._slots[number - 1].progress.add(report)
        self._serving: dict[SlotTask, asyncio.Task[None]] = {}
        self.stack_dumps = StackDumps(pool, self._slots, pid=pid)
        self._orders = Orders(self, self._slots)
        self.outcomes = self._orders.outcomes
        self.refused_results = RefusedResults(self.sessions, self.outcomes, self.stopping)
        self.adopted_jobs = AdoptedJobs(
            self._id,
            sessions=self.sessions,
            stopping=self.stopping,
            refused_results=self.refused_results,
            job_events=self.job_events,
            failed_per_queue=self.failed_per_queue,
            own_outcome=self._orders.outcome,
        )

    async def run(self) -> int | RestartReason:
        """Work until the end. Returns the exit code, or why the worker must start anew.

        Raises StoreInvalid or UrlInvalid for a broker that can never be opened.
        """
        log.info(
            "worker started id=%s queues=%s slots=%d broker=%s",
            self._id,
            self._selection,
            len(self._slots),
            self._options.settings.address,
        )
        self._show_title()
        self.job_events.worker_started(self.report())
        # A signal may have come before.
        if not self._paused and not self._quiet and not self.stopping.is_set():
            self._start_taking()
        self._spawn(self._stall_watchdog.run())
        if self._size_watch is not None:
            self._spawn(self._size_watch.run())
        session_task = self._spawn(self.sessions.keep_open())
        gone = self._spawn(self.pool.gone.wait())
        code: int | RestartReason
        end = self._shutdown.end
        try:
            await asyncio.wait({session_task, gone, end}, return_when=asyncio.FIRST_COMPLETED)
            if session_task.done():
                session_task.result()
                code = UNREACHABLE
                self._stop_taking()
            elif not end.done() and not self._shutdown.killed:
                # The running jobs have crashed with the template, and are settled as crashed.
                self._stop_taking()
                await self._wait_for_slots(SETTLE_TIMEOUT)
                code = FORCED if self._shutdown.final else RestartReason.TEMPLATE_DIED
            else:
                code = await end
            await self.job_events.worker_ended(self.report(), code)
        finally:
            await self._close()
            await self._exit_hook()
        return code

    def log_end(self) -> None:
        """Log that the worker has stopped: its last line, once its processes have ended too."""
        log.info("worker stopped id=%s processed=%d failed=%d", self._id, self._processed, self._failed)

    def act(self, row: SignalRow) -> None:
        """Obey a signal."""
        resumes = row.action is Action.RESUME
        action = "none" if resumes and not self._paused else row.action.value
        log.info("signal received signal=%s action=%s", row.name, action)
        if resumes and self._quiet:
            log.info("worker stays quiet until it ends or is told `palermo control resume`")
        busy = sum(slot.running is not None for slot in self._slots)
        if row.action is Action.INTERRUPT and busy and not self._shutdown.begun.is_set():
            log.warning("finishing %s and ending; a second Ctrl-C kills what still runs", count(busy, "running job"))
        self.order(row.action)

    def order(self, action: Action) -> None:
        """Do what a signal or an order through the broker asks for."""
        match action:
            case Action.KILL_JOBS:
                self.pool.kill_jobs()
            case Action.DUMP:
                if self._dump is None or self._dump.done():
                    self._dump = self._spawn(self.stack_dumps.log())
            case Action.QUIET:
                self._quiet = True
                self._stop_taking()
            case Action.PAUSE:
                if not self._paused and not self.stopping.is_set():
                    self._paused = True
                    self._stop_taking()
                    self._spawn(self._hook("before_pause"))
            case Action.WAKE:
                if not self.stopping.is_set():
                    self._quiet = False
                    self._resume()
            case Action.RESUME:
                if self._paused and not self.stopping.is_set():
                    self._resume()
            case Action.RENEW | Action.FINISH | Action.STOP | Action.INTERRUPT | Action.ABANDON:
                self._shutdown.obey(action)
            case _:
                assert_never(action)

    def report(self) -> WorkerInfo:
        """This worker's description, for listings of workers."""
        return WorkerInfo(
            id=self._id,
            host=self._host,
            pid=self._pid,
            queues=self._selection.written,
            slots=len(self._slots),
            state=self.state,
            started_at=self._started_at,
            processed=self._processed,
            failed=self._failed,
            jobs=tuple(job for slot in self._slots for job in slot.jobs),
            outcomes=self.outcomes.ids,
            permits=tuple(slot.demand for slot in self._slots if slot.demand is not None and slot.permitted),
            asks=tuple(slot.demand for slot in self._slots if slot.demand is not None and not slot.permitted),
            duties=() if self.sessions.current is None else self.sessions.current.broker.duties,
            version=VERSION,
            release=self._options.settings.release,
        )

    @property
    def state(self) -> str:
        """The worker's state, one of palermo.contract.worker_info.STATES."""
        if self.stopping.is_set():
            return "stopping"
        if self._quiet:
            return "quiet"
        if self._paused:
            return "paused"
        if self._busy:
            return "working"
        return "starting" if self.sessions.current is None else "idle"

    def job_began(self) -> None:
        """A slot has taken a job."""
        self._busy += 1
        self.taken += 1
        if self._title is None:
            self._update_title_soon()

    def job_ended(self, message: Message, result: Result, *, settled: bool) -> None:
        """A slot has settled a job, or could not."""
        self._busy -= 1
        self._orders.job_ended(message, result, settled=settled)
        if not isinstance(result, (Interrupted, Cancelled)):
            self._processed += 1
        if isinstance(result, Retrying) and result.failure is not None:
            self._failed += 1
        if isinstance(result, Raised):
            self._failed += 1
            if self._failed_retention.wanted and self._retention_timer is None:
                self._retention_timer = asyncio.get_running_loop().call_later(
                    self._failed_retention.due_in, lambda: self._spawn(self._apply_failed_retention())
                )
        if self._title is None:
            self._update_title_soon()
        if self._idle_watch is not None:
            self._idle_watch.check_soon()

    def cancelled_by(self, id: str) -> str:
        """Who had this running job cancelled; "" if nobody said."""
        return self._orders.cancelled_by(id)

    # Taking jobs.

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._spawn(self._hook("after_pause"))
        if not self._quiet:
            self._start_taking()

    def _start_taking(self) -> None:
        """Have every slot whose task has ended take jobs again."""
        self.taking = True
        for slot in self._slots:
            task = self._serving.get(slot)
            if task is None or task.done():
                task = self._serving[slot] = asyncio.ensure_future(slot.serve())
                task.add_done_callback(self._slot_task_ended)
        self._update_title_soon()
        if self._idle_watch is not None:
            self._idle_watch.check_soon()

    def _stop_taking(self) -> None:
        """Take no more jobs. Slot tasks that wait for a job end now, the others once their job is settled."""
        self.taking = False
        for slot, task in self._serving.items():
            if slot.waiting:
                task.cancel()
        session = self.sessions.current
        if session is not None:
            self._spawn(self._stop_deliveries(session))
        self._update_title_soon()

    async def _stop_deliveries(self, session: BrokerSession) -> None:
        with suppress(PalermoError):
            for slot in self._slots:
                await session.consumer.pause_slot(slot.number)

    async def _wait_for_slots(self, timeout: float | None = None) -> None:
        """Wait until all slot tasks have ended, for at most `timeout` seconds."""
        tasks = [task for task in self._serving.values() if not task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)

    async def _finish(self) -> None:
        # Slots may wait with results that the broker refuses: have each tried a last time.
        self.refused_results.try_all_now()
        await self._wait_for_slots()
        await self.adopted_jobs.wait()
        await self.refused_results.wait()
        await self._hook("shutdown")

    # The session with the broker.

    async def _consume(self, broker: Broker) -> Consumer:
        await subscribe_groups(broker, self._subscriptions)
        if self._announcing is not None:
            self._announcing.cancel()
        self._announcing = self._spawn(self._announce(broker))
        # Before it takes jobs, if that is quick: an alarm of RabbitMQ keeps records from being stored, and jobs go on.
        await asyncio.wait({self._announcing}, timeout=_ANNOUNCE_TIMEOUT)
        slots, prefetch = len(self._slots), NO_PREFETCH if self.batches else self._options.prefetch
        report, obey = self.report, self._orders.obey
        return await broker.consume(
            self._selection, slots=slots, tag=self._id, report=report, on_command=obey, prefetch=prefetch
        )

    async def _announce(self, broker: Broker) -> None:
        """Announce which of its jobs are unique; again until that is stored, or the session has ended."""
        for attempt in itertools.count(1):
            try:
                await broker.keys.announce(self._jobs, self._unique_jobs)
                return
            except BrokerError as error:
                check_cancelled()
                log.warning("unique jobs are not announced yet broker=%s error=%r", broker.describe(), str(error))
            await asyncio.sleep(backoff(attempt, random.random()))

    def _on_session_open(self, session: BrokerSession) -> None:
        self.job_events.recorder.attach(session.broker.journal)
        self._update_title_soon()
        if self._failed_retention.wanted:
            self._spawn(self._failed_retention.run(session.broker))
        if self._idle_watch is not None:
            self._idle_watch.check_soon()

    def _on_session_lost(self) -> None:
        self.refused_results.try_all_now()
        self._update_title_soon()
        if self._announcing is not None:
            self._announcing.cancel()

    async def _apply_failed_retention(self) -> None:
        self._retention_timer = None
        session = self.sessions.current
        if session is not None:
            await self._failed_retention.run(session.broker)

    # For the watchdog (StallWatchdog).

    def idle(self) -> BrokerSession | None:
        """The session on which a slot waits for a job now; None if no slot waits."""
        waiting = any(slot.waiting and not slot.resting for slot in self._slots)
        return self.sessions.current if self.taking and waiting else None

    async def served_queues(self, session: BrokerSession) -> set[str]:
        """The queues that the worker serves, without the paused ones."""
        queues = await session.broker.queues()
        paused = {queue.name for queue in queues if queue.paused}
        return set(self._selection.select({queue.name for queue in queues})) - paused

    def reopen(self, session: BrokerSession, error: Exception) -> None:
        """Give up the session, so that another is opened."""
        self.sessions.lose(session, error)

    def give_up(self) -> None:
        """End the worker with the exit code STALLED."""
        self._shutdown.give_up()

    def _slot_task_ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # A bug. The slot would be idle for ever, so it is better to end and be started again.
            log.critical("slot lost, ending", exc_info=error)
            self.give_up()

    # Empty queues.

    def _idle(self) -> bool:
        return self.taking and not self._busy and self.sessions.current is not None

    async def _count_pending(self) -> int:
        session = self.sessions.current
        return -1 if session is None else await count_pending(session.broker, self._selection, self._awaited_limits)

    @property
    def _awaited_limits(self) -> Collection[str]:
        return self.put_aside if self._options.burst_waits_for_limits else ()

    async def _on_queues_empty(self) -> None:
        if self._processed:
            await self._hook("queue_empty")
        if not self._options.burst or not self.taking:
            return
        # Jobs on their way to a slot go back before the last check, so that they are counted.
        self._stop_taking()
        await self._wait_for_slots()
        session = self.sessions.current
        if session is not None:
            await self._stop_deliveries(session)
            with suppress(BrokerError):
                drained = await is_drained(session.broker, self._selection, self._awaited_limits)
                if drained and not self.stopping.is_set():
                    self._shutdown.stop(None)
                    return
        if not self._paused and not self._quiet and not self.stopping.is_set():
            self._start_taking()

    # The sizes of the queues.

    async def _queue_sizes(self) -> dict[str, int] | None:
        session = self.sessions.current
        if session is None:
            return None
        pending = {queue.name: queue.pending for queue in await session.broker.queues()}
        return {name: pending[name] for name in self._selection.select(pending)}

    async def _on_queue_sizes(self, sizes: Mapping[str, int]) -> None:
        self.pace = await self.pool.hook("queue_size", sizes)

    # Hooks, background tasks, title, end.

    async def _hook(self, name: str) -> None:
        if name in self._hooks:
            await self.pool.hook(name)

    async def _exit_hook(self) -> None:
        """Have the hook worker_exit run, last of all: the worker has left its broker. A hook that hangs is given up."""
        try:
            await asyncio.wait_for(self._hook("worker_exit"), EXIT_TIMEOUT)
        except TimeoutError:
            log.error("worker_exit hook still runs after %.0f s, killing it", EXIT_TIMEOUT)
            self.pool.kill()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _update_title_soon(self) -> None:
        """Update the process title soon: the state may have changed."""
        if self._title is None:
            self._title = asyncio.get_running_loop().call_later(_TITLE_EVERY, self._show_title)

    def _show_title(self) -> None:
        self._title = None
        busy = sum(slot.running is not None for slot in self._slots)
        self._set_title(parent_title(state=self.state, queues=str(self._selection), busy=busy, slots=len(self._slots)))

    async def _close(self) -> None:
        for timer in (self._title, self._retention_timer):
            if timer is not None:
                timer.cancel()
        if self._idle_watch is not None:
            self._idle_watch.close()
        self._shutdown.close()
        self.adopted_jobs.close()
        self.refused_results.close()
        tasks = [*self._tasks, *self._serving.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def subscribe_groups(broker: Broker, subscriptions: Iterable[tuple[Subscription, bool]]) -> None:
    """Subscribe these groups to their events. A group that begins from the start gets the stored events too.

    The first time this takes as long as copying all of these to the group.
    """
    for subscription, from_start in subscriptions:
        copied = await broker.events.subscribe(subscription, from_start=from_start)
        log.info(
            "subscribed group=%s topics=%s queue=%s%s",
            subscription.group,
            ",".join(subscription.topics),
            subscription.queue,
            f" from_before={copied}" if copied else "",
        )


def parent_title(*, state: str, queues: str, busy: int, slots: int) -> str:
    """The title of the parent process, by the worker's state."""
    match state:
        case "working":
            return f"palermo worker: {busy} of {count(slots, 'slot')} busy"
        case "idle":
            return f"palermo worker: waiting for {queues}"
        case "paused" | "quiet" | "stopping" if busy:
            return f"palermo worker: {state}, {busy} of {count(slots, 'slot')} busy"
        case _:
            return f"palermo worker: {state}"
