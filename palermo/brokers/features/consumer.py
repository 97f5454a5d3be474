"""The common part of the SQLite and Redis consumers: waiting for jobs, starting, postponing and settling them.

Starting, postponing and settling a job are each one step, on condition that the claim is still valid. Claiming and
deleting jobs must be fast, so each broker has its own way.
"""

import abc
import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from palermo.brokers.features import limits
from palermo.brokers.features.commands import CommandListener
from palermo.brokers.features.gathered import Gathered
from palermo.brokers.features.heartbeat import Heartbeat
from palermo.brokers.features.steps import Job, Step, StepStore, put
from palermo.brokers.features.unique_keys import KeyStates, change_keys, end_run, keys_of, start_run
from palermo.brokers.features.workflows import Ending, Workflows, key_changer
from palermo.contract import clock
from palermo.contract.admission import KeyReport, admitted, is_plain, key_report, needs_key
from palermo.contract.broker import Delivery, TakeDelivery
from palermo.contract.worker_info import OnCommand
from palermo.core.lifecycle import Ack, Fail, Release, Reschedule, Settlement
from palermo.core.limits import RunLater, RunNow, demand_of, postponed
from palermo.core.unique_rules import StartAnswer
from palermo.core.workflow import WORKFLOW
from palermo.core.workflow_rules import is_member
from palermo.errors import BrokerError, BrokerUnavailable, DeliveryLost

log = logging.getLogger("palermo.broker")

_DONE = Ack()


class Claim(Struct, frozen=True):
    """A consumer's right to a job, valid until the job is released."""

    number: Any
    holder: Any
    #: The claim's number among all claims on the job.
    times: Any
    id: str

    @property
    def still_valid(self) -> Step:
        """The condition that the claim is still valid."""
        return ("held", self.holder, self.number, self.times)


class StepConsumer(abc.ABC):
    """Takes jobs for the slots of one worker."""

    def __init__(self, steps: StepStore, heartbeat: Heartbeat, on_command: OnCommand, place: str) -> None:
        """`place` names the database in errors."""
        self._steps = steps
        self._workflows = Workflows(steps, key_changer(steps))
        self._worker = heartbeat.worker
        self._place = place
        #: The claim of each slot that has an unsettled delivery.
        self._held: dict[int, Claim] = {}
        #: Claims that occupy no slot: companions, and adopted jobs, which another worker runs.
        self._detached: set[Claim] = set()
        #: Finished jobs, to be deleted in the same step as the next claim.
        self._done: list[Claim] = []
        #: Ends of workflow steps that are not stored yet.
        self._endings = Gathered(self._end_all)
        #: By slot: the callback of its last `receive`, which is offered the next plain job first.
        self._takes: dict[int, TakeDelivery | None] = {}
        #: By slot: the pending calls of `receive`.
        self._receiving: defaultdict[int, list[asyncio.Future[Delivery]]] = defaultdict(list)
        #: Calls that wait for another job of a batch.
        self._batches: list[asyncio.Future[None]] = []
        self._loop = asyncio.get_running_loop()
        self._commands = CommandListener(steps, self._worker, on_command, self._holds)
        self._heartbeat = heartbeat
        self._beating: asyncio.Task[None] | None = None
        #: Whether the next turn of the loop claims and deletes jobs.
        self._scheduled = False
        self._lost: BrokerError | None = None
        self._closed = False

    @abc.abstractmethod
    def _work(self) -> None:
        """Start deleting finished jobs and claiming jobs for the waiting slots."""

    @abc.abstractmethod
    async def _claim_similar(self, delivery: Delivery) -> tuple[bool, Delivery | None]:
        """Claim another job of the delivery's queue, to run together with it.

        Returns whether the queue has another job, and the job, or None if it was not claimed.
        """

    @abc.abstractmethod
    async def _leave(self, *, cut_off: bool) -> None:
        """Release the jobs. If the session is `cut_off`, leave them to the worker's next session."""

    @abc.abstractmethod
    async def flush(self) -> None:
        """Delete finished jobs now, and store the ends of workflow steps that have run."""

    async def start(self) -> None:
        """Start executing commands and reporting to other sessions."""
        await self._commands.start()
        self._beating = self._loop.create_task(self._heartbeat.run(self._look))
        self._beating.add_done_callback(self._heartbeat_ended)

    async def receive(self, slot: int, take: TakeDelivery | None = None) -> Delivery:
        self._check()
        self._takes[slot] = take
        future: asyncio.Future[Delivery] = self._loop.create_future()
        self._receiving[slot].append(future)
        self._work_soon()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                with contextlib.suppress(BrokerError):
                    await self.settle(future.result(), Release())
            raise
        finally:
            if future in self._receiving[slot]:
                self._receiving[slot].remove(future)

    def acknowledge(self, delivery: Delivery) -> None:
        claim = self._claim_of(delivery)
        self._check()
        if not (delivery.message.extra and self._end_soon(delivery, _DONE)):
            self._delete_soon(claim)
        self._free_slot(delivery.slot)

    async def next_for_batch(self, delivery: Delivery, *, wait: float) -> Delivery | None:
        until = self._loop.time() + wait
        while True:
            self._check()
            woken: asyncio.Future[None] = self._loop.create_future()
            self._batches.append(woken)
            try:
                there, found = await self._claim_similar(delivery)
                if found is not None:
                    self._detached.add(found.token)
                    return found
                left = until - self._loop.time()
                if there or left <= 0:
                    return None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await woken
            finally:
                if woken in self._batches:
                    self._batches.remove(woken)

    async def pause_slot(self, slot: int) -> None:
        await self.flush()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # Also a lost connection that this side hasn't noticed yet.
        cut_off = self._lost is not None or self._steps.ended
        with contextlib.suppress(BrokerError):
            await self._commands.end()
        with contextlib.suppress(BrokerError):
            await self.flush()
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait({self._beating})
        self._lose(BrokerUnavailable("the consumer is closed."))
        await self._leave(cut_off=cut_off)
        self._held, self._detached = {}, set()

    async def admit(self, delivery: Delivery, *, copy: bool = False) -> Delivery | None:
        if not needs_key(delivery):
            return delivery
        claim = self._claim_of(delivery)
        found: list[StartAnswer] = []

        def decide(states: KeyStates) -> None:
            run = f"{claim.number}/{claim.times}"
            again = delivery.redelivered and not copy
            found[:] = [start_run(states, delivery.message, worker=self._worker, run=run, again=again)]

        if await change_keys(self._steps, keys_of([delivery.message]), decide, conditions=[claim.still_valid]):
            raise self._went_back(delivery)
        started = admitted(delivery, found[0])
        if started is None:
            log.warning("copy of a job dropped id=%s job=%s", delivery.message.id, delivery.message.job)
            await self.settle(delivery, Ack(done=False))
        return started

    async def save(self, delivery: Delivery, saved: str) -> None:
        claim: Claim = delivery.token
        self._check()
        job = Job(replace(delivery.message, saved=saved))
        await self._steps.try_change([claim.still_valid], [("save", claim.number, job)])

    async def permit(self, delivery: Delivery) -> float | None:
        demand = demand_of(delivery.message)
        if demand is None or delivery.cancelled or delivery.duplicate_of:
            return 0.0
        claim = self._claim_of(delivery)
        failed = 2
        while failed > 1:
            verdict, conditions, changes = await limits.decide(self._steps, claim.number, demand, clock.now())
            held = [claim.still_valid, *conditions]
            if isinstance(verdict, RunNow):
                failed = (await self._steps.try_change(held, changes)).failed
            else:
                waits = [] if verdict.reserved else [("wait", demand.key)]
                failed = await self._postpone(delivery, verdict, held, [*waits, *changes])
        if failed:
            raise self._went_back(delivery)
        if isinstance(verdict, RunNow):
            return verdict.wait
        self._end(delivery)
        return None

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        claim: Claim = delivery.token
        if self._held.get(delivery.slot) != claim and claim not in self._detached:
            raise self._delivery_lost(delivery)
        self._check()
        adds = isinstance(settlement, Ack) and bool(settlement.adds)
        if adds or WORKFLOW in delivery.message.extra:
            changes = _steps(claim, settlement)
            if isinstance(settlement, Ack) and not adds and self._end_soon(delivery, settlement):
                self._end(delivery)
                return
            if await self._workflows.settle(delivery.message, settlement, [claim.still_valid], changes):
                raise self._went_back(delivery)
            self._end(delivery)
            return
        run_end = key_report(delivery, settlement, adopted=bool(delivery.running_at))
        if isinstance(settlement, Ack) and run_end is None and demand_of(delivery.message) is None:
            self._delete_soon(claim)
            self._end(delivery)
            return
        if await self._change(delivery, run_end, [claim.still_valid], _steps(claim, settlement)):
            raise self._went_back(delivery)
        self._end(delivery)

    def _end_soon(self, delivery: Delivery, ack: Ack) -> bool:
        """Store a step's end soon, together with others of its workflow. Frees the slot now. False for other jobs."""
        claim: Claim = delivery.token
        ending = Ending.of(delivery.message, ack, claim.still_valid, _steps(claim, ack))
        if ending is None:
            return False
        # Waiting costs members a repeated run if the worker is killed. Urgent ones would double the time of
        # `benchmarks.workflows map`.
        self._endings.add(ending, urgent=not is_member(ending.end.path))
        return True

    async def end_steps(self) -> None:
        """Wait until the ends of all completed steps are stored."""
        await self._endings.flush()

    async def _end_all(self, endings: Sequence[Ending]) -> None:
        try:
            for id in dict.fromkeys(ending.workflow for ending in endings):
                if await self._workflows.end_together(id, [one for one in endings if one.workflow == id]):
                    self._lose(BrokerUnavailable(f"{self._place}: another process considered this worker dead."))
        except BrokerError as error:
            self._lose(error)

    async def free_slot(self, delivery: Delivery) -> None:
        self._detached.add(self._claim_of(delivery))
        self._free_slot(delivery.slot)

    async def _change(
        self, delivery: Delivery, run_end: KeyReport | None, conditions: list[Step], changes: list[Step]
    ) -> int:
        """Change a job and its key. Returns 0, or the number of the condition that failed."""

        def decide(states: KeyStates) -> None:
            if run_end is not None:
                end_run(states, delivery.message, run_end)

        names = keys_of([delivery.message]) if run_end is not None else []
        return await change_keys(self._steps, names, decide, conditions=conditions, changes=changes)

    async def _postpone(
        self, delivery: Delivery, verdict: RunLater, conditions: list[Step], changes: list[Step]
    ) -> int:
        """Postpone a job until it may run. Returns 0, or the number of the condition that failed."""
        later = Reschedule(postponed(delivery.message, verdict))
        moved, *rest = _steps(delivery.token, later)
        return await self._change(delivery, key_report(delivery, later), conditions, [moved, *changes, *rest])

    def _offered(self, delivery: Delivery) -> bool:
        """Offer a plain job to its slot's callback; return whether the callback accepted it."""
        take = self._takes.get(delivery.slot)
        if take is None or delivery.redelivered or delivery.cancelled or not is_plain(delivery.message):
            return False
        return take(delivery)

    def _hand_out(self, delivery: Delivery) -> None:
        """Give a delivery to its waiting slot."""
        self._held[delivery.slot] = delivery.token
        if not self._offered(delivery):
            next(future for future in self._receiving[delivery.slot] if not future.done()).set_result(delivery)

    def _free_slots(self) -> list[int]:
        return [
            slot
            for slot, futures in self._receiving.items()
            if slot not in self._held and any(not future.done() for future in futures)
        ]

    def _free_slot(self, slot: int) -> None:
        """Allow the slot to receive again."""
        del self._held[slot]
        self._work_soon()

    def _delete_soon(self, claim: Claim) -> None:
        """Delete this finished job in the same step as the next claim."""
        self._done.append(claim)
        self._work_soon()

    def _work_soon(self) -> None:
        """Delete finished jobs and claim new ones in the next turn of the loop."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._work)

    def _look(self) -> None:
        for woken in self._batches:
            if not woken.done():
                woken.set_result(None)
        self._work_soon()

    def _lose(self, error: BrokerError) -> None:
        """Record that the session is lost, and raise the error in all waiting calls."""
        self._lost = self._lost or error
        for futures in self._receiving.values():
            for future in futures:
                if not future.done():
                    future.set_exception(BrokerUnavailable(str(error)))
        self._look()

    def _holds(self, id: str) -> bool:
        return any(claim.id == id for claim in (*self._held.values(), *self._detached))

    def _heartbeat_ended(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled():
            return
        match task.exception():
            case BrokerError() as error:
                self._lose(error)
            case error:
                self._lose(
                    BrokerUnavailable(f"{self._place}: this worker can no longer report that it is alive: {error!r}")
                )

    def _claim_of(self, delivery: Delivery) -> Claim:
        """The claim on a delivery that is still held. Raises DeliveryLost."""
        claim: Claim = delivery.token
        if self._held.get(delivery.slot) != claim:
            raise self._delivery_lost(delivery)
        return claim

    def _end(self, delivery: Delivery) -> None:
        """Remove a delivery that is no longer ours."""
        if delivery.token in self._detached:
            self._detached.discard(delivery.token)
        elif self._held.get(delivery.slot) == delivery.token:
            self._free_slot(delivery.slot)

    def _delivery_lost(self, delivery: Delivery) -> DeliveryLost:
        return DeliveryLost(
            f"job {delivery.message.id} is no longer held by this worker, because it was already settled or requeued."
        )

    def _went_back(self, delivery: Delivery) -> DeliveryLost:
        self._end(delivery)
        return DeliveryLost(
            f"job {delivery.message.id} was requeued, because another process considered this worker dead."
        )

    def _check(self) -> None:
        if self._lost is not None:
            # Any error means that the session is lost and its jobs are released.
            raise BrokerUnavailable(str(self._lost))


def _steps(claim: Claim, settlement: Settlement) -> list[Step]:
    """The changes of a settlement."""
    drop = ("drop", claim.holder, claim.number, claim.times)
    match settlement:
        case Ack():
            return [(*drop, "")]
        # Store first, since a script that stops with an error keeps the changes that it has made.
        case Fail(message, queue):
            return [put(message, queue), (*drop, "")]
        case Reschedule(message):
            return [put(message), (*drop, "1")]
        case Release():
            return [("release", claim.holder, claim.number)]
