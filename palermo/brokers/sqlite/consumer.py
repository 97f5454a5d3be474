"""One worker's claim on jobs in the file."""

import asyncio
import contextlib
import json
import sqlite3
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from palermo.broker import Delivery
from palermo.brokers.sqlite import holders, marks, tenants
from palermo.brokers.sqlite.bell import Bell
from palermo.brokers.sqlite.claims import Claim, first
from palermo.brokers.sqlite.messages import COLUMNS, from_row, insert, release, to_row
from palermo.brokers.sqlite.orders import Listener
from palermo.brokers.sqlite.store import Store, Work
from palermo.core.lifecycle import Ack, Fail, Release, Retry, Settlement
from palermo.core.message import Message
from palermo.core.patterns import QueueSelection
from palermo.crew import WorkerInfo
from palermo.errors import BrokerError, BrokerUnavailable, DeliveryLost

T = TypeVar("T")

#: How often we say what we do, and look whether others still live: within a second both must be known.
TICK = 0.25


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
        self._directory = directory
        self._lock = lock
        self._holder = holder
        self._exchange = exchange
        self._selection = selection
        self._report = report
        self._reported = reported
        self._orders = orders
        #: That of tenants.
        self._order = order
        #: The claim of each slot that has an unsettled delivery.
        self._held: dict[int, Claim] = {}
        self._parked: set[Claim] = set()
        #: Done, but not yet taken out of the file: the next claim does both at once.
        self._done: list[Claim] = []
        self._flushing: asyncio.Task[None] | None = None
        #: Calls that wait for a job, and calls that wait for their slot to be free.
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._blocked: deque[asyncio.Future[None]] = deque()
        #: The queues to serve, by number, in order of priority; as of the queue table's state `_known`.
        self._queues: dict[int, str] = {}
        self._known: int | None = None
        self._loop = asyncio.get_running_loop()
        self._lost: BrokerError | None = None
        self._ticking = self._loop.create_task(self._tick())
        self._ticking.add_done_callback(self._ticked)

    async def receive(self, slot: int) -> Delivery:
        try:
            while slot in self._held:
                await self._sleep(self._blocked)
            look = False
            while True:
                self._check()
                delivery = await self._take(slot, look=look)
                if delivery is not None:
                    # One ring may stand for many jobs: each who finds one wakes the next.
                    self._wake()
                    return delivery
                look = True
                await self._wait()
        except asyncio.CancelledError:
            # Perhaps it was this call that had been woken.
            self._wake()
            raise

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        claim: Claim = delivery.token
        if self._held.get(delivery.slot) != claim and claim not in self._parked:
            raise self._not_ours(delivery)
        self._check()
        match settlement:
            case Ack():
                # Taken out of the file with the slot's next claim, in one transaction instead of two;
                # or in the loop's next round, should the slot not ask for another job at once.
                self._done.append(claim)
                self._loop.call_soon(self._flush_soon)
                found = True
            case Fail(message, queue):
                found = await self._replace(claim, message, queue)
            case Retry(message):
                found = await self._replace(claim, message, message.queue, marked=True)
                self._bell.ring()
            case Release():

                def give_back(db: sqlite3.Connection) -> bool:
                    return release(db, _OURS, self._key(claim)) == 1

                found = await self._write(give_back)
                self._bell.ring()
        if claim in self._parked:
            self._parked.discard(claim)
        else:
            del self._held[delivery.slot]
            self._wake_all(self._blocked)
        if not found:
            raise DeliveryLost(f"job {delivery.message.id} went back to its queue: another process took us for dead.")

    async def park(self, delivery: Delivery) -> None:
        if self._held.get(delivery.slot) != delivery.token:
            raise self._not_ours(delivery)
        self._parked.add(self._held.pop(delivery.slot))
        self._wake_all(self._blocked)

    async def another(self, delivery: Delivery, *, wait: float) -> Delivery | None:
        until = self._loop.time() + wait
        while True:
            self._check()
            there, found = await self._write(lambda db: self._claim_like(db, delivery))
            if found is not None:
                self._parked.add(found.token)
                return found
            left = until - self._loop.time()
            if there or left <= 0:
                return None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._wait()

    def _claim_like(self, db: sqlite3.Connection, delivery: Delivery) -> tuple[bool, Delivery | None]:
        """The next job of the delivery's queue, and whether there is one, if it may be run together with that."""
        self._resolve(db)
        number = next((number for number, name in self._queues.items() if name == delivery.message.queue), None)
        if number is None:
            return True, None
        ((next_,),) = db.execute(f"select {first(1)}", (number, number)).fetchall()
        if next_ is None:
            return False, None
        ((claims, *row),) = db.execute(f"select claims, {COLUMNS} from job where id = ?", (next_,)).fetchall()
        message = from_row(row, delivery.message.queue)
        cancelled = marks.find(db, self._exchange, message) is not None
        if claims or cancelled or message.job != delivery.message.job:
            return True, None
        return True, self._claim(db, delivery.slot, only=number)

    async def waiting(self) -> set[str]:
        def find(db: sqlite3.Connection) -> set[str]:
            rows = db.execute("select queue from job where id = ?", (self._find(db),)).fetchall()
            return {self._queues[queue] for (queue,) in rows}

        return await self._store.read(find)

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
        self._wake_all(self._waiting)
        self._wake_all(self._blocked)
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
        if look and not self._done and await self._store.read(self._find) is None:
            return None
        delivery = await self._write(lambda db: self._claim(db, slot))
        if delivery is not None:
            self._held[slot] = delivery.token
        return delivery

    def _find(self, db: sqlite3.Connection) -> int | None:
        self._resolve(db)
        ((found,),) = db.execute(f"select {first(len(self._queues))}", self._numbers()).fetchall()
        return None if found is None else int(found)

    def _claim(self, db: sqlite3.Connection, slot: int, *, only: int | None = None) -> Delivery | None:
        """The next job of all queues that are served, or of only one."""
        self._resolve(db)
        numbers = self._numbers() if only is None else (only, only)
        rows = db.execute(
            f"update job set holder = ?, slot = ?, claims = claims + 1 where id = {first(len(numbers) // 2)}"
            f" returning id, claims, deaths, queue, tenant, {COLUMNS}",
            (self._holder, slot, *numbers),
        ).fetchall()
        if not rows:
            return None
        number, claims, deaths, queue, tenant, *row = rows[0]
        if tenant is not None:
            tenants.served(db, queue, tenant, self._order)
        message = from_row(row, self._queues[queue])
        by = marks.find(db, self._exchange, message)
        return Delivery(
            message=message,
            slot=slot,
            token=Claim(number, claims),
            redelivered=claims > 1,
            cancelled=by is not None,
            cancelled_by=by or "",
            deaths=tuple(deaths.split()),
        )

    def _numbers(self) -> tuple[int, ...]:
        """What _first asks for: each queue for what is nobody's, and for what is its tenants'."""
        return tuple(number for queue in self._queues for number in (queue, queue))

    def _resolve(self, db: sqlite3.Connection) -> None:
        """Learn which queues there are and which are paused, if that has changed."""
        ((version,),) = db.execute("select value from meta where key = 'queues'").fetchall()
        if version == self._known:
            return
        rows = db.execute("select name, id from queue where exchange = ? and not hidden", (self._exchange,)).fetchall()
        known: dict[str, int] = dict(rows)
        paused = marks.paused(db, self._exchange)
        chosen = (name for name in self._selection.select(known) if name in known and name not in paused)
        self._queues = {known[name]: name for name in chosen}
        self._known = version

    # -- writing -----------------------------------------------------------

    async def _write(self, work: Work[T]) -> T:
        """The work, and in the same transaction all that is done by now."""
        done: tuple[Claim, ...] = ()

        def delete_and_work(db: sqlite3.Connection) -> tuple[T, bool]:
            nonlocal done
            done = tuple(self._done)
            deleted = [self._delete(db, claim) for claim in done]
            return work(db), all(deleted)

        result, ours = await self._store.write(delete_and_work)
        del self._done[: len(done)]
        if not ours:
            self._lose(BrokerUnavailable(f"{self._store.shown}: another process took this worker for dead."))
        return result

    async def _replace(self, claim: Claim, message: Message, queue: str, *, marked: bool = False) -> bool:
        """In one transaction put the message in a queue and take the job out of the file, if it is still ours.

        With `marked` a mark that the job is cancelled stays, which goes with a job that is taken out.
        """
        row = to_row(message)

        def replace(db: sqlite3.Connection) -> bool:
            marks_of = marks.of(db, self._exchange, message.id) if marked else []
            if found := self._delete(db, claim):
                insert(db, self._exchange, queue, row)
                marks.put_back(db, marks_of)
            return found

        return await self._write(replace)

    def _flush_soon(self) -> None:
        if self._done and self._flushing is None:
            self._flushing = self._loop.create_task(self._flush())

    async def _flush(self) -> None:
        try:
            await self.flush()
        except BrokerError as error:
            self._lose(error)
        finally:
            self._flushing = None

    def _key(self, claim: Claim) -> tuple[int, int, int]:
        return (claim.job, self._holder, claim.claims)

    def _delete(self, db: sqlite3.Connection, claim: Claim) -> bool:
        return db.execute(f"delete from job where {_OURS}", self._key(claim)).rowcount == 1

    # -- waiting, and showing that we live ---------------------------------

    async def _wait(self) -> None:
        """Until there may be a job."""
        if not self._waiting:
            self._bell.listen(self._wake)
        try:
            await self._sleep(self._waiting)
        finally:
            if not self._waiting:
                self._bell.ignore(self._wake)

    async def _sleep(self, among: "deque[asyncio.Future[None]]") -> None:
        future = self._loop.create_future()
        among.append(future)
        try:
            await future
        finally:
            if future in among:
                among.remove(future)

    def _wake(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return

    def _wake_all(self, among: "deque[asyncio.Future[None]]") -> None:
        while among:
            future = among.popleft()
            if not future.done():
                future.set_result(None)

    async def _tick(self) -> None:
        version = self._store.data_version()
        while True:
            await asyncio.sleep(TICK)
            await self._show()
            await self._orders.look()
            if await holders.bury(self._store, self._directory, but=self._holder):
                self._bell.ring()
            await self._store.renew()
            # The net under the bell: a publisher may have died between its commit and its ring.
            if (found := self._store.data_version()) != version:
                version = found
                self._wake()

    async def _show(self) -> None:
        """Store the worker's report, if it has changed."""
        report = self._report()
        if report == self._reported:
            return
        values = (json.dumps(report.to_plain()), self._holder)
        changed = await self._store.write(
            lambda db: db.execute("update holder set report = ? where id = ?", values).rowcount
        )
        if not changed:
            raise BrokerUnavailable(f"{self._store.shown}: another process took this worker for dead.")
        self._reported = report

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
        self._wake_all(self._waiting)
        self._wake_all(self._blocked)

    def _not_ours(self, delivery: Delivery) -> DeliveryLost:
        return DeliveryLost(f"job {delivery.message.id} is not ours to settle: it was settled or given back before.")

    def _check(self) -> None:
        if self._lost is not None:
            raise type(self._lost)(str(self._lost))


#: The condition that a claim still stands.
_OURS = "id = ? and holder = ? and claims = ?"
