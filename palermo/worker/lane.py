"""A lane: the one long-lived task of a slot, which takes a job, has it run and settles it, again and again."""

import asyncio
import logging
import random
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from palermo.admission import runs_alone
from palermo.broker import Delivery
from palermo.core.journal import Kind
from palermo.core.lifecycle import (
    Ack,
    Cancelled,
    Fail,
    Interrupted,
    Raised,
    Release,
    Result,
    Retry,
    RunResult,
    each_of,
    settle,
    without_value,
)
from palermo.core.message import Message
from palermo.core.permits import demand_of
from palermo.crew import RunningJob
from palermo.errors import (
    BrokerError,
    BrokerUnavailable,
    DeliveryLost,
    NotFound,
    PalermoError,
)
from palermo.worker.chronicle import Chronicle
from palermo.worker.express import Express
from palermo.worker.keeping import SUCCEEDED
from palermo.worker.outcomes import Outcomes
from palermo.worker.parking import Parking
from palermo.worker.pool import Runner
from palermo.worker.progress import Progress
from palermo.worker.reporting import MAX_TEXT
from palermo.worker.session import Link, Live, pause
from palermo.worker.telling import tell_end, tell_start, tell_success
from palermo.worker.unrun import duplicate, worker_died

log = logging.getLogger("palermo.worker")

_ACK = Ack()
_RELEASE = Release()


class Floor(Protocol):
    """What the lanes of a worker share."""

    runner: Runner
    link: Link
    #: Whether to take jobs: not while paused, nor once stopping.
    taking: bool
    #: Where failed jobs go: apart for every queue, or all in one.
    failed_per_queue: bool
    #: Set once the worker stops.
    stopping: asyncio.Event

    #: The keys of limited jobs that were put aside here: until these have run a burst is not over.
    put_aside: set[str]

    #: After how many deaths of workers a job fails without being run; None for never.
    max_deaths: int | None
    #: Where jobs wait that another worker still runs, and the results that another worker may ask for.
    parking: Parking
    outcomes: Outcomes
    chronicle: Chronicle
    #: By job that takes several at once, how many at most, and the seconds that it waits for them.
    batches: Mapping[str, tuple[int, float]]

    def began(self) -> None:
        """A lane has taken a job."""

    def ended(self, message: Message, result: Result, *, settled: bool) -> None:
        """A lane has settled one, or could not."""

    def cancelled_by(self, id: str) -> str:
        """Who had this running job cancelled; "" if nobody said."""


class Lane:
    """One slot as the worker's loop sees it."""

    __slots__ = (
        *("_asking", "_express", "_floor", "_receiving", "_refusals", "_started_at", "_taken", "_task"),
        *("number", "permitted", "progress", "tag"),
    )

    def __init__(self, number: int, tag: str, floor: Floor) -> None:
        self.number = number
        #: What the slot is called in consumer tags and failures.
        self.tag = tag
        #: What the job that it runs tells of itself.
        self.progress = Progress()
        self._floor = floor
        self._taken: list[Delivery] = []
        #: What it runs, or waits to be allowed to run, and whether it was allowed to.
        self._asking: Message | None = None
        self.permitted = False
        self._started_at = 0.0
        #: How many results in a row the broker would not store.
        self._refusals = 0
        self._express = Express(self, floor.runner)
        #: Its task, and whether that is waiting for a job.
        self._task: asyncio.Task[None] | None = None
        self._receiving = False

    @property
    def waiting(self) -> bool:
        """Whether it waits for a job, so that cancelling it interrupts nothing."""
        return self._receiving and not self._express.busy

    @property
    def jobs(self) -> tuple[RunningJob, ...]:
        """The jobs that it runs now: one, unless that takes batches."""
        return tuple(self._running(one.message) for one in self._taken)

    @property
    def running(self) -> RunningJob | None:
        """The first of them."""
        return self._running(self._taken[0].message) if self._taken else None

    def _running(self, message: Message) -> RunningJob:
        progress = self.progress
        return RunningJob(
            id=message.id,
            job=message.job,
            queue=message.queue,
            slot=self.number,
            started_at=self._started_at,
            progress=progress.fraction,
            text=progress.text,
            line=progress.lines[-1][:MAX_TEXT] if progress.lines else "",
        )

    @property
    def demand(self) -> tuple[str, str] | None:
        """The key and the id of a job with a limit that it runs, or waits to be allowed to run."""
        demand = None if self._asking is None else demand_of(self._asking)
        return None if demand is None or self._asking is None else (demand.key, self._asking.id)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The jobs that it runs now, as they came."""
        return tuple(one.message for one in self._taken)

    async def serve(self) -> None:
        """Take jobs and have them run for as long as the worker takes any; to be cancelled only while waiting."""
        floor = self._floor
        link = floor.link
        self._task = asyncio.current_task()
        await floor.runner.prepare(self.number)
        while True:
            await self._express.free()
            if not floor.taking:
                return
            live = link.live
            self._receiving = True
            try:
                if live is None:
                    await link.available.wait()
                    continue
                self._express.open(live)
                delivery = await live.consumer.receive(self.number)
            except (BrokerError, NotFound) as error:
                assert live is not None
                link.lose(live, error)
                continue
            except Exception as error:  # the edge of the worker's loop: a broker's bug must not end the slot
                log.exception("cannot receive slot=%d", self.number)
                assert live is not None
                link.lose(live, error)
                continue
            finally:
                self._receiving = False
            try:
                if not delivery.running_at or delivery.cancelled or not await floor.parking.take(live, delivery):
                    await self._admit(live, delivery)
            except Exception as error:  # the edge again: the job goes back with the session
                log.exception("cannot finish job id=%s job=%s", delivery.message.id, delivery.message.job)
                link.lose(live, error)

    async def _admit(self, live: Live, delivery: Delivery) -> None:
        """Run the job, if it has the key that it needs."""
        try:
            admitted = await live.consumer.admit(delivery)
        except (BrokerUnavailable, DeliveryLost) as error:
            if isinstance(error, BrokerUnavailable):
                self._floor.link.lose(live, error)
            return
        if admitted is None:
            return
        self._asking = admitted.message
        try:
            if await self._permitted(live, admitted):
                await self._work(live, admitted)
        finally:
            self._asking, self.permitted = None, False

    async def _permitted(self, live: Live, delivery: Delivery) -> bool:
        """Whether it may run now, if it has a limit or a rate."""
        try:
            wait = await live.consumer.permit(delivery)
        except (BrokerUnavailable, DeliveryLost) as error:
            if isinstance(error, BrokerUnavailable):
                self._floor.link.lose(live, error)
            return False
        self.permitted = wait is not None
        if wait is None and (demand := demand_of(delivery.message)) is not None:
            self._floor.put_aside.add(demand.key)
            self._floor.chronicle.limited(self.number, delivery.message, demand)
        if wait:
            await asyncio.sleep(wait)
        return wait is not None

    async def _gather(self, live: Live, delivery: Delivery) -> list[Delivery]:
        """The delivery, and as many more as its job takes in one call."""
        taken = [delivery]
        most, wait = self._floor.batches.get(delivery.message.job, (1, 0.0))
        if delivery.redelivered or delivery.cancelled or runs_alone(delivery.message):
            return taken  # who died of it, or ran it already, is to be known of it alone
        until = time.monotonic() + wait
        while len(taken) < most and self._floor.taking:
            more = await live.consumer.another(delivery, wait=max(0.0, until - time.monotonic()))
            if more is None:
                break
            taken.append(more)
        return taken

    async def _work(self, live: Live, delivery: Delivery) -> None:
        floor, message = self._floor, delivery.message
        self._taken = taken = [delivery]
        self._started_at = ended_at = time.time()
        floor.began()
        results: tuple[Result, ...] = (Interrupted(),)
        done = 0
        try:
            if message.job in floor.batches:
                self._taken = taken = await self._gather(live, delivery)
                for _ in taken[1:]:
                    floor.began()
                self._started_at = ended_at = time.time()
                message = replace(message, companions=tuple(each.message for each in taken[1:]))
            results = (Interrupted(),) * len(taken)
            self._began(message)
            if delivery.cancelled:
                results = (Cancelled(),)
            elif delivery.duplicate_of:
                results = (duplicate(delivery),)
            elif floor.max_deaths is not None and len(delivery.deaths) >= floor.max_deaths:
                results = (Raised(worker_died(delivery)),)
            else:
                tell_start(self.number, message)
                results = each_of(await floor.runner.run(self.number, message), len(taken))
                ended_at = time.time()
            self.progress.end()
            for each, result in zip(taken, results, strict=True):
                done += 1
                await self._finish(live, each, result, ended_at)
        finally:
            self.progress.end()
            self._taken = []
            for each, result in list(zip(taken, results, strict=False))[done:]:
                at = self._started_at
                floor.chronicle.ended(self.number, each.message, result, began=at, ended=ended_at, settled=False)
                floor.ended(each.message, result, settled=False)

    def _began(self, message: Message) -> None:
        self._floor.chronicle.began(self.number, message, self._started_at)
        self.progress.begin(self._tells)

    def _tells(self, kind: Kind, said: Mapping[str, Any]) -> None:
        """Its job, or the first of a batch, tells of itself."""
        self._floor.chronicle.tells(self.number, self._taken[0].message, kind, said)

    # What its quick way asks of it, and tells it: see Express.

    def may_take(self, delivery: Delivery) -> bool:
        """Whether it takes this job, as one that is run alone."""
        return self._floor.taking and delivery.message.job not in self._floor.batches

    def begun(self, delivery: Delivery) -> None:
        """It runs this job now."""
        self._taken, self._started_at = [delivery], time.time()
        self._floor.began()
        self._began(delivery.message)
        tell_start(self.number, delivery.message)

    def succeeded(self, delivery: Delivery, ended_at: float) -> None:
        """The job has returned nothing that is kept, and is acknowledged."""
        floor, message, began = self._floor, delivery.message, self._started_at
        self.progress.end()
        self._taken = []
        self._refusals = 0
        tell_success(self.number, message, began)
        floor.chronicle.ended(self.number, message, SUCCEEDED, began=began, ended=ended_at, settled=True)
        floor.ended(message, SUCCEEDED, settled=True)

    async def ended(self, live: Live, delivery: Delivery, result: RunResult, ended_at: float) -> None:
        """It has ended with this result, which is still to be settled."""
        self.progress.end()
        try:
            await self._finish(live, delivery, each_of(result, 1)[0], ended_at)
        except Exception as error:  # the edge again: the job goes back with the session
            log.exception("cannot finish job id=%s job=%s", delivery.message.id, delivery.message.job)
            self._floor.link.lose(live, error)

    def freed(self) -> None:
        """Its slot is free again; if no more is to be taken, its task need not wait any longer."""
        if self._receiving and not self._floor.taking and self._task is not None:
            self._task.cancel()

    # How a job ends.

    async def _finish(self, live: Live, delivery: Delivery, result: Result, ended_at: float) -> None:
        """Tell how a job ended, and have it settled."""
        floor, message = self._floor, delivery.message
        times = {"began": self._started_at, "ended": ended_at}
        by, settled, written = "", False, False
        try:
            if isinstance(result, Cancelled):
                by = delivery.cancelled_by or floor.cancelled_by(message.id)
            ran = not delivery.cancelled
            tell_end(self.number, message, result, began=self._started_at, ran=ran, by=by)
            written = await floor.chronicle.keep(self.number, message, result, **times, by=by)
            # From here on a result is the journal's, and whoever remembers how the job ended need not have it.
            result = without_value(result)
            settled = await self._settle(live, delivery, result)
        finally:
            self._taken = [one for one in self._taken if one is not delivery]
            floor.chronicle.ended(self.number, message, result, **times, settled=settled, by=by, written=written)
            floor.ended(message, result, settled=settled)

    async def _settle(self, live: Live, delivery: Delivery, result: Result) -> bool:
        """Have the broker do what the result calls for; whether it did."""
        message = delivery.message
        per_queue = self._floor.failed_per_queue
        settlement = settle(message, result, worker=self.tag, now=time.time(), failed_per_queue=per_queue)
        try:
            await live.consumer.settle(delivery, settlement)
            self._refusals = 0
            return True
        except (BrokerUnavailable, DeliveryLost) as error:
            self._floor.outcomes.keep(message, result, slot=self.tag)
            log.warning(
                "result dropped, the broker has given the job back and it may run again id=%s job=%s error=%r",
                message.id,
                message.job,
                str(error),
            )
            if isinstance(error, BrokerUnavailable):
                self._floor.link.lose(live, error)
        except PalermoError as error:
            if not isinstance(settlement, Fail | Retry):
                raise
            # It cannot be stored where it belongs, so it may not be acknowledged: back to its queue, not at full speed.
            self._refusals += 1
            wait = pause(self._refusals, random.random())
            log.error(
                "failed job cannot be stored, giving it back id=%s job=%s error=%r in=%.1f",
                message.id,
                message.job,
                str(error),
                wait,
            )
            await self._rest(wait)
            await self._release(live, delivery)
        return False

    async def _release(self, live: Live, delivery: Delivery) -> None:
        try:
            await live.consumer.settle(delivery, _RELEASE)
        except BrokerError as error:
            # Then the session gives it back.
            self._floor.link.lose(live, error)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._floor.stopping.wait()
        except TimeoutError:
            pass
