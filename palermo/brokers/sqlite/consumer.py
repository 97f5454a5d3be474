"""One worker's claim on jobs in the file."""

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

from palermo.admission import admitted, how_ended, must_ask
from palermo.broker import Delivery
from palermo.brokers.sqlite import claims, holders, keys, permits
from palermo.brokers.sqlite.bell import Bell
from palermo.brokers.sqlite.claims import Claim
from palermo.brokers.sqlite.express import SqliteExpress
from palermo.brokers.sqlite.messages import to_row
from palermo.brokers.sqlite.orders import Listener
from palermo.brokers.sqlite.served import Served
from palermo.brokers.sqlite.sign import Sign
from palermo.brokers.sqlite.sleepers import Sleepers
from palermo.brokers.sqlite.store import Store, Work
from palermo.brokers.sqlite.taking import Taker
from palermo.core.lifecycle import Ack, Fail, Release, Retry, Settlement
from palermo.core.message import Message
from palermo.core.patterns import QueueSelection
from palermo.core.permits import Aside, Go, demand_of, put_aside
from palermo.core.unique import Start
from palermo.crew import WorkerInfo
from palermo.errors import BrokerError, BrokerUnavailable, DeliveryLost

log = logging.getLogger("palermo.sqlite")

T = TypeVar("T")


class SqliteConsumer:
    """Takes jobs for the slots of one worker."""

    def __init__(
        self,
        store: Store,
        bell: Bell,
        *,
        directory: str,
        lock: holders.Lock,
        holder: int,
        exchange: str,
        selection: QueueSelection,
        report: Callable[[], WorkerInfo],
        reported: WorkerInfo,
        orders: Listener,
        order: str,
    ) -> None:
        self._store = store
        self._bell = bell
        self._lock = lock
        self._holder = holder
        self._exchange = exchange
        self._orders = orders
        self._sign = Sign(store, directory, holder, report, reported)
        #: The claim of each slot that has an unsettled delivery.
        self._held: dict[int, Claim] = {}
        self._parked: set[Claim] = set()
        #: Done, but not yet taken out of the file: the next claim does both at once.
        self._done: list[Claim] = []
        self._flushing: asyncio.Task[None] | None = None
        #: Calls that wait for a job, and by slot those that wait for it to be free.
        self._waiting = Sleepers()
        self._blocked: defaultdict[int, Sleepers] = defaultdict(Sleepers)
        #: What the call that waits in a slot is to return.
        self._ready: dict[int, Delivery] = {}
        self.express = SqliteExpress(self)
        self._taker = Taker(exchange, holder, Served(exchange, selection), order=order)
        self._loop = asyncio.get_running_loop()
        self._lost: BrokerError | None = None
        self._ticking = self._loop.create_task(self._sign.keep(orders, bell.ring, self._waiting.wake))
        self._ticking.add_done_callback(self._ticked)

    async def receive(self, slot: int) -> Delivery:
        try:
            look = False
            while True:
                while slot in self._held and slot not in self._ready:
                    look = True  # what is there, the quick way has found already
                    await self._blocked[slot].sleep()
                self._check()
                delivery = self._ready.pop(slot, None)
                if delivery is not None:
                    return delivery
                delivery = await self._take(slot, look=look)
                if delivery is None:
                    look = True
                    await self._wait()
                    continue
                # One ring may stand for many jobs: each who finds one wakes the next.
                self._waiting.wake()
                if not self.express.offered(delivery):
                    return delivery
        except asyncio.CancelledError:
            # Perhaps it was this call that had been woken.
            self._waiting.wake()
            if slot in self._ready:
                with contextlib.suppress(BrokerError):
                    await self.settle(self._ready.pop(slot), Release())
            raise

    async def admit(self, delivery: Delivery) -> Delivery | None:
        if not must_ask(delivery):
            return delivery
        claim: Claim = delivery.token
        if self._held.get(delivery.slot) != claim:
            raise self._not_ours(delivery)

        def ask(db: sqlite3.Connection) -> Start:
            run = f"{claim.job}/{claim.times}"
            return keys.start(
                db,
                self._exchange,
                delivery.message,
                worker=self._sign.worker,
                run=run,
                again=delivery.redelivered,
            )

        found = admitted(delivery, await self._write(ask))
        if found is None:
            log.warning("copy of a job dropped id=%s job=%s", delivery.message.id, delivery.message.job)
            await self.settle(delivery, Ack(done=False))
        return found

    async def permit(self, delivery: Delivery) -> float | None:
        demand = demand_of(delivery.message)
        if demand is None or delivery.cancelled or delivery.duplicate_of:
            return 0.0
        claim: Claim = delivery.token
        if self._held.get(delivery.slot) != claim:
            raise self._not_ours(delivery)

        def ask(db: sqlite3.Connection) -> Go | Aside:
            verdict = permits.take(db, self._exchange, claim.job, demand, time.time())
            if isinstance(verdict, Aside):
                waiting = put_aside(delivery.message, verdict)
                ended = self._ended(delivery, Retry(waiting))
                claims.replace(db, claim, self._exchange, (waiting.queue, to_row(waiting)), ended, marked=True)
                permits.line_up(db, self._exchange, demand, verdict)
            return verdict

        verdict = await self._write(ask)
        if isinstance(verdict, Go):
            return verdict.wait
        self._free(delivery.slot)
        self._bell.ring()
        return None

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        claim: Claim = delivery.token
        if self._held.get(delivery.slot) != claim and claim not in self._parked:
            raise self._not_ours(delivery)
        self._check()
        ended = self._ended(delivery, settlement)
        match settlement:
            case Ack() if ended is not None or demand_of(delivery.message) is not None:
                found = await self._write(lambda db: claims.delete(db, claim) and (ended is None or ended(db)))
                self._bell.ring()
            case Ack():
                # Taken out of the file with the slot's next claim, in one transaction instead of two;
                # or in the loop's next round, should the slot not ask for another job at once.
                self._done.append(claim)
                self._loop.call_soon(self.flush_soon)
                found = True
            case Fail(message, queue):
                found = await self._replace(claim, message, queue, ended)
            case Retry(message):
                found = await self._replace(claim, message, message.queue, ended, marked=True)
                self._bell.ring()
            case Release():

                def give_back(db: sqlite3.Connection) -> bool:
                    return claims.give_back(db, claim) and (ended is None or ended(db))

                found = await self._write(give_back)
                self._bell.ring()
        if claim in self._parked:
            self._parked.discard(claim)
        else:
            self._free(delivery.slot)
        if not found:
            raise DeliveryLost(f"job {delivery.message.id} went back to its queue: another process took us for dead.")

    async def park(self, delivery: Delivery) -> None:
        if self._held.get(delivery.slot) != delivery.token:
            raise self._not_ours(delivery)
        self._parked.add(delivery.token)
        self._free(delivery.slot)

    async def another(self, delivery: Delivery, *, wait: float) -> Delivery | None:
        until = self._loop.time() + wait
        while True:
            self._check()
            there, found = await self._write(lambda db: self._taker.claim_like(db, delivery))
            if found is not None:
                self._parked.add(found.token)
                return found
            left = until - self._loop.time()
            if there or left <= 0:
                return None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._wait()

    async def waiting(self) -> set[str]:
        return await self._store.read(self._taker.queue_of_next)

    async def rest(self, slot: int) -> None:
        # A job is claimed only by a receive that hands it out, so nothing is ever on its way.
        await self.flush()

    async def flush(self) -> None:
        """Take what is done out of the file now."""
        if self._done and self._lost is None:
            await self._write(lambda db: None)

    async def close(self) -> None:
        self._lost = self._lost or BrokerUnavailable("the consumer is closed.")
        await self._orders.end()
        self._ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._ticking
        self._wake_all()
        held = [*self._held, *self._parked]
        self._held, self._parked = {}, set()
        try:
            with contextlib.suppress(BrokerError):
                await self._write(lambda db: holders.remove(db, self._holder))
            if self._flushing is not None:
                await self._flushing
            if held:
                self._bell.ring()
        finally:
            # Whatever happened above: once the lock is gone, others give back what we held.
            self._lock.drop()

    # -- taking ------------------------------------------------------------

    async def _take(self, slot: int, *, look: bool) -> Delivery | None:
        """The next job for the slot, if there is one.

        With `look` we look first, since there likely is none, and looking keeps no writer waiting.
        """
        if look and not self._done and await self._store.read(self._taker.find) is None:
            return None
        delivery = await self._write(lambda db: self._taker.claim(db, slot))
        if delivery is not None:
            self._held[slot] = delivery.token
        return delivery

    # What its quick way asks of it: see express.py.

    def finish(self, delivery: Delivery) -> None:
        claim: Claim = delivery.token
        if self._held.get(delivery.slot) != claim:
            raise self._not_ours(delivery)
        self._check()
        self._done.append(claim)
        del self._held[delivery.slot]

    def free(self) -> list[int]:
        return [slot for slot, sleepers in self._blocked.items() if slot not in self._held and sleepers]

    def claim_at_once(self, slots: Sequence[int]) -> list[Delivery]:
        self._check()
        taker = self._taker

        def claim(db: sqlite3.Connection) -> list[Delivery]:
            found: list[Delivery] = []
            for slot in slots:
                delivery = taker.claim(db, slot)
                if delivery is None:
                    break
                found.append(delivery)
            return found

        found = self._written(self._store.attempt(self._with_done(claim)))
        for delivery in found:
            self._held[delivery.slot] = delivery.token
        return found

    def go_on(self, slot: int, delivery: Delivery | None) -> None:
        if delivery is not None:
            self._ready[slot] = delivery
        self._blocked[slot].wake_all()

    def flush_soon(self) -> None:
        if self._done and self._flushing is None:
            self._flushing = self._loop.create_task(self._flush())

    # -- writing -----------------------------------------------------------

    async def _write(self, work: Work[T]) -> T:
        """The work, and in the same transaction all that is done by now."""
        return self._written(await self._store.write(self._with_done(work)))

    def _with_done(self, work: Work[T]) -> Work[tuple[T, int, bool]]:
        def delete_and_work(db: sqlite3.Connection) -> tuple[T, int, bool]:
            done = tuple(self._done)
            deleted = [claims.delete(db, claim) for claim in done]
            return work(db), len(done), all(deleted)

        return delete_and_work

    def _written(self, found: tuple[T, int, bool]) -> T:
        result, done, ours = found
        del self._done[:done]
        if not ours:
            self._lose(BrokerUnavailable(f"{self._store.shown}: another process took this worker for dead."))
        return result

    def _ended(self, delivery: Delivery, settlement: Settlement) -> Work[bool] | None:
        """What the settlement means for the job's key, to be done in its transaction; None for nothing."""
        told = how_ended(delivery, settlement)
        if told is None:
            return None
        return lambda db: keys.end(db, self._exchange, delivery.message, told)

    async def _replace(
        self,
        claim: Claim,
        message: Message,
        queue: str,
        ended: Work[bool] | None,
        *,
        marked: bool = False,
    ) -> bool:
        """In one transaction put the message in a queue and take the job out of the file, if it is still ours.

        With `marked` a mark that the job is cancelled stays, which goes with a job that is taken out.
        """
        row = to_row(message)
        return await self._write(
            lambda db: claims.replace(db, claim, self._exchange, (queue, row), ended, marked=marked)
        )

    async def _flush(self) -> None:
        try:
            await self.flush()
        except BrokerError as error:
            self._lose(error)
        finally:
            self._flushing = None

    # -- waiting, and showing that we live ---------------------------------

    async def _wait(self) -> None:
        """Until there may be a job."""
        if not self._waiting:
            self._bell.listen(self._waiting.wake)
        try:
            await self._waiting.sleep()
        finally:
            if not self._waiting:
                self._bell.ignore(self._waiting.wake)

    def _ticked(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled():
            return
        match task.exception():
            case BrokerError() as error:
                self._lose(error)
            case error:
                self._lose(BrokerUnavailable(f"{self._store.shown}: this worker can no longer show itself: {error!r}"))

    def _lose(self, error: BrokerError) -> None:
        """The session is lost; all that wait learn it."""
        self._lost = self._lost or error
        self._wake_all()

    def _wake_all(self) -> None:
        self._waiting.wake_all()
        for sleepers in self._blocked.values():
            sleepers.wake_all()

    def _free(self, slot: int) -> None:
        """The slot may receive again."""
        del self._held[slot]
        self._blocked[slot].wake_all()

    def _not_ours(self, delivery: Delivery) -> DeliveryLost:
        return DeliveryLost(f"job {delivery.message.id} is not ours to settle: it was settled or given back before.")

    def _check(self) -> None:
        if self._lost is not None:
            raise type(self._lost)(str(self._lost))
