"""The worker's loop: what it does from its first session with the broker to its last job.

Each slot has a lane, a task that takes a job, has it run and settles it. Beside them one
task keeps the session with the broker open. When that is lost, running jobs are let
finish and their results dropped, since the broker has given them back already. The
worker ends when it is told to, when a burst finds its queues empty, or when the runner is gone.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

from palermo.broker import Broker, Consumer
from palermo.core.journal import Level
from palermo.core.lifecycle import Cancelled, Interrupted, Raised, Result, Retrying
from palermo.core.message import Message
from palermo.core.patterns import QueueSelection
from palermo.core.prefetch import ONE
from palermo.core.topology import worker_tag
from palermo.crew import WorkerInfo
from palermo.errors import BrokerError
from palermo.recorder import Recorder
from palermo.worker.chronicle import Chronicle
from palermo.worker.dumps import Dumps
from palermo.worker.emptiness import EmptyWatch, pending
from palermo.worker.ending import DEAF, FORCED, LAST_WORDS, UNREACHABLE, Anew, Ending
from palermo.worker.lane import Lane
from palermo.worker.options import WorkerOptions
from palermo.worker.orders import Orders
from palermo.worker.parking import Parking
from palermo.worker.pool import Registered, Runner
from palermo.worker.process import set_title
from palermo.worker.session import Link, Live
from palermo.worker.signals import Action, SignalRow
from palermo.worker.subscribing import subscribe
from palermo.worker.timekeeping import Duties
from palermo.worker.titles import parent_title
from palermo.worker.trim import Trimmer
from palermo.worker.watchdog import DeafWatch, LoopWatch, end_at_once

log = logging.getLogger("palermo.worker")

#: Seconds between two titles, at least: an idle worker sets none, a busy one 20 a second.
_TITLE_EVERY = 0.05


class Worker:
    """One worker, as the parent process runs it."""

    def __init__(
        self,
        options: WorkerOptions,
        runner: Runner,
        registered: Registered,
        *,
        host: str,
        pid: int,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._options = options
        self._selection = options.queues or QueueSelection(registered.queues)
        self._hooks, self._subscriptions = registered.hooks, registered.subscriptions
        self._host, self._pid = host, pid
        self._id = f"pid:{pid}@{host}"
        self._started_at = now()
        self._processed = self._failed = self._busy = 0
        self._paused = self._quiet = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._title: asyncio.TimerHandle | None = None
        self._trimmer = Trimmer(options.settings, now=now)
        self._trim: asyncio.TimerHandle | None = None
        self._watch: EmptyWatch | None = None
        if options.burst or "queue_empty" in registered.hooks:
            self._watch = EmptyWatch(idle=self._idle, pending=self._pending, on_empty=self._emptied)
        self._deaf_watch = DeafWatch(self)
        recorder = Recorder(Level(options.settings.journal), self._id, now=now)
        self.chronicle = Chronicle(recorder, release=options.settings.release)
        self.runner = runner
        self.taking = True
        self.put_aside: set[str] = set()
        self.failed_per_queue = options.settings.failed_per_queue
        self.max_deaths = options.settings.max_deaths
        self.batches = registered.batches
        self._ending = Ending(options, runner, rest=self._rest, finish=self._finish)
        self.stopping = self._ending.begun
        self._dump: asyncio.Task[None] | None = None
        self.link = Link(
            replace(options.settings.session("worker"), prioritized=registered.prioritized, takes=True),
            give_up=options.burst,
            duties=Duties.of(options, registered, self.chronicle.fired),
            consume=self._consume,
            opened=self._opened,
            lost=self._lost,
        )
        self._lanes = [Lane(n, worker_tag(pid, host, n), self) for n in range(1, options.concurrency + 1)]
        runner.on_report = lambda slot, report: self._lanes[slot - 1].progress.heard(report)
        self._serving: dict[Lane, asyncio.Task[None]] = {}
        self.dumps = Dumps(runner, self._lanes, pid=pid)
        self._orders = Orders(self, self._lanes)
        self.outcomes = self._orders.outcomes
        self.parking = Parking(self, self._id, self._orders.outcome)

    async def run(self) -> int | Anew:
        """Work until the end; the exit code, or why all must begin anew.

        Raises StoreInvalid or UrlInvalid for a broker that can never be opened.
        """
        log.info(
            "worker started id=%s queues=%s slots=%d broker=%s",
            self._id,
            self._selection,
            len(self._lanes),
            self._options.settings.address,
        )
        self._show()
        self.chronicle.up(self.report())
        self._take()
        self._spawn(self._deaf_watch.run())
        loop_watch = LoopWatch(end_at_once(DEAF))
        holding = self._spawn(self.link.hold())
        gone = self._spawn(self.runner.gone.wait())
        code: int | Anew
        end = self._ending.end
        try:
            await asyncio.wait({holding, gone, end}, return_when=asyncio.FIRST_COMPLETED)
            if holding.done():
                holding.result()
                code = UNREACHABLE
                self._rest()
            elif not end.done() and not self._ending.killed:
                # What ran has crashed with the runner, and is settled as such.
                self._rest()
                await self._served(LAST_WORDS)
                code = FORCED if self._ending.final else Anew.RUNNER_GONE
            else:
                code = await end
            await self.chronicle.close(self.report(), code)
        finally:
            await self._clean_up()
            loop_watch.close()
        log.info("worker stopped id=%s processed=%d failed=%d", self._id, self._processed, self._failed)
        return code

    def act(self, row: SignalRow) -> None:
        """Obey a signal."""
        log.info("signal received signal=%s action=%s", row.name, row.action.value)
        self.order(row.action)

    def order(self, action: Action) -> None:
        """Do what a signal or someone far away asks for."""
        match action:
            case Action.KILL_JOBS:
                self.runner.kill_jobs()
            case Action.DUMP:
                if self._dump is None or self._dump.done():
                    self._dump = self._spawn(self.dumps.log())
            case Action.QUIET:
                self._quiet = True
                self._rest()
            case Action.PAUSE if not self._paused and not self.stopping.is_set():
                self._paused = True
                self._rest()
                self._spawn(self._hook("before_pause"))
            case Action.WAKE if not self.stopping.is_set():
                self._quiet = False
                self._resume()
            case Action.RESUME if self._paused and not self.stopping.is_set():
                self._resume()
            case _:
                self._ending.obey(action)

    def report(self) -> WorkerInfo:
        """This worker, for those who ask the broker about it."""
        return WorkerInfo(
            id=self._id,
            host=self._host,
            pid=self._pid,
            queues=self._selection.written,
            slots=len(self._lanes),
            state=self.state,
            started_at=self._started_at,
            processed=self._processed,
            failed=self._failed,
            jobs=tuple(job for lane in self._lanes for job in lane.jobs),
            outcomes=self.outcomes.ids,
            permits=tuple(lane.demand for lane in self._lanes if lane.demand is not None and lane.permitted),
            asks=tuple(lane.demand for lane in self._lanes if lane.demand is not None and not lane.permitted),
            clock=self.link.live is not None and self.link.live.broker.leads,
        )

    @property
    def state(self) -> str:
        """In one word, as WorkerInfo has it."""
        if self.stopping.is_set():
            return "stopping"
        if self._quiet:
            return "quiet"
        if self._paused:
            return "paused"
        if self._busy:
            return "working"
        return "starting" if self.link.live is None else "idle"

    def began(self) -> None:
        """A lane has taken a job."""
        self._busy += 1
        self._deaf_watch.heard()
        if self._title is None:
            self._changed()

    def ended(self, message: Message, result: Result, *, settled: bool) -> None:
        """A lane has settled one, or could not."""
        self._busy -= 1
        self._orders.ended(message, result, settled=settled)
        if not isinstance(result, (Interrupted, Cancelled)):
            self._processed += 1
        if isinstance(result, Retrying) and result.failure is not None:
            self._failed += 1
        if isinstance(result, Raised):
            self._failed += 1
            if self._trimmer.wanted and self._trim is None:
                loop = asyncio.get_running_loop()
                self._trim = loop.call_later(self._trimmer.due_in, lambda: self._spawn(self._trim_failed()))
        if self._title is None:
            self._changed()
        if self._watch is not None:
            self._watch.look()

    def cancelled_by(self, id: str) -> str:
        """Who had this running job cancelled; "" if nobody said."""
        return self._orders.cancelled_by(id)

    # Taking jobs, and not.

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._spawn(self._hook("after_pause"))
        if not self._quiet:
            self._take()

    def _take(self) -> None:
        """Let every lane that rests take jobs again."""
        self.taking = True
        for lane in self._lanes:
            task = self._serving.get(lane)
            if task is None or task.done():
                task = self._serving[lane] = asyncio.ensure_future(lane.serve())
                task.add_done_callback(self._lane_ended)
        self._changed()
        if self._watch is not None:
            self._watch.look()

    def _rest(self) -> None:
        """Take no more jobs. Lanes that wait end; the others go on until their job is settled."""
        self.taking = False
        for lane, task in self._serving.items():
            if lane.waiting:
                task.cancel()
        live = self.link.live
        if live is not None:
            self._spawn(self._put_to_rest(live))
        self._changed()

    async def _put_to_rest(self, live: Live) -> None:
        with suppress(BrokerError):
            for lane in self._lanes:
                await live.consumer.rest(lane.number)

    async def _served(self, timeout: float | None = None) -> None:
        """Wait until no lane has a job."""
        tasks = [task for task in self._serving.values() if not task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)

    async def _finish(self) -> None:
        await self._served()
        await self.parking.clear()
        await self._hook("shutdown")

    # The session with the broker.

    async def _consume(self, broker: Broker) -> Consumer:
        await subscribe(broker, self._subscriptions)
        slots, prefetch = len(self._lanes), ONE if self.batches else self._options.prefetch
        report, obey = self.report, self._orders.obey
        return await broker.consume(
            self._selection, slots=slots, tag=self._id, report=report, obey=obey, prefetch=prefetch
        )

    def _opened(self, live: Live) -> None:
        self.chronicle.recorder.attach(live.broker.journal)
        self._changed()
        if self._trimmer.wanted:
            self._spawn(self._trimmer.run(live.broker))
        if self._watch is not None:
            self._watch.look()

    def _lost(self) -> None:
        self.chronicle.recorder.detach()
        self._changed()

    async def _trim_failed(self) -> None:
        self._trim = None
        live = self.link.live
        if live is not None:
            await self._trimmer.run(live.broker)

    # What the watchdog asks for.

    def idle(self) -> Live | None:
        """The session on which a slot waits for a job at this moment."""
        return self.link.live if self.taking and any(lane.waiting for lane in self._lanes) else None

    async def served(self, live: Live) -> set[str]:
        """The queues that the worker serves, without those that are paused."""
        queues = await live.broker.queues()
        paused = {queue.name for queue in queues if queue.paused}
        return set(self._selection.select({queue.name for queue in queues})) - paused

    def reopen(self, live: Live, error: Exception) -> None:
        """Give up the session, and open another."""
        self.link.lose(live, error)

    def give_up(self) -> None:
        """End, with the exit code that says why."""
        self._ending.give_up()

    def _lane_ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # A bug, and the slot would be idle for ever: a process that is started anew is worth more.
            log.critical("slot lost, ending", exc_info=error)
            self.give_up()

    # Empty queues.

    def _idle(self) -> bool:
        return self.taking and not self._busy and self.link.live is not None

    async def _pending(self) -> int:
        live = self.link.live
        return -1 if live is None else await pending(live.broker, self._selection, self.put_aside)

    async def _emptied(self) -> None:
        if self._processed:
            await self._hook("queue_empty")
        if not self._options.burst or not self.taking:
            return
        # What was on its way to a slot goes back before the last look, so that it is counted.
        self._rest()
        await self._served()
        live = self.link.live
        if live is not None:
            await self._put_to_rest(live)
        with suppress(BrokerError):
            if not await self._pending() and not self.stopping.is_set():
                self._ending.stop(None)
                return
        if not self._paused and not self._quiet and not self.stopping.is_set():
            self._take()

    # Odds and ends.

    async def _hook(self, name: str) -> None:
        if name in self._hooks:
            await self.runner.hook(name)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _changed(self) -> None:
        """Show it in the title, soon."""
        if self._title is None:
            self._title = asyncio.get_running_loop().call_later(_TITLE_EVERY, self._show)

    def _show(self) -> None:
        self._title = None
        busy = sum(lane.running is not None for lane in self._lanes)
        set_title(parent_title(state=self.state, queues=str(self._selection), busy=busy, slots=len(self._lanes)))

    async def _clean_up(self) -> None:
        for timer in (self._title, self._trim):
            if timer is not None:
                timer.cancel()
        if self._watch is not None:
            self._watch.close()
        self._ending.close()
        self.parking.close()
        tasks = [*self._tasks, *self._serving.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
