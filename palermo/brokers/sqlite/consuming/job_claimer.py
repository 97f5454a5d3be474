"""Finds the next job in the queues that one worker serves, and claims it."""

import sqlite3
import time

from palermo.brokers.sqlite.consuming.served_queues import ServedQueues
from palermo.brokers.sqlite.tables import fair_queue, pauses_and_cancels
from palermo.brokers.sqlite.tables.claims import Claim
from palermo.brokers.sqlite.tables.jobs import COLUMNS, from_row
from palermo.contract.admission import runs_alone
from palermo.contract.broker import Delivery

#: Seconds by which a claim outlasts its `lock_for`: before that the worker kills the run, or the run ends by itself.
LOCK_LAG = 2.0


class JobClaimer:
    """Finds and claims jobs for one consumer, inside the caller's transaction."""

    def __init__(self, exchange: str, holder: int, served_queues: ServedQueues, *, order: str) -> None:
        """`order` is the order in which the tenants of a queue are served."""
        self._exchange = exchange
        self._holder = holder
        self._served_queues = served_queues
        self._order = order

    def find(self, db: sqlite3.Connection) -> int | None:
        """The number of the next job; None if none waits."""
        return _found(db, self._served_queues.next_job(db))

    def queue_of_next(self, db: sqlite3.Connection) -> set[str]:
        """The queue of the next job; empty if none waits."""
        rows = db.execute("select queue from job where id = ?", (self.find(db),)).fetchall()
        return {self._served_queues.name(queue) for (queue,) in rows}

    def claim(self, db: sqlite3.Connection, slot: int) -> Delivery | None:
        """Claim the next job for this slot; None if none waits."""
        return self._claim(db, slot, self._served_queues.next_job(db))

    def claim_similar(self, db: sqlite3.Connection, delivery: Delivery) -> tuple[bool, Delivery | None]:
        """Whether the delivery's queue has another job, and that job, claimed, if it may run together with this one."""
        query = self._served_queues.next_job_of(db, delivery.message.queue)
        if query is None:
            return True, None
        number = _found(db, query)
        if number is None:
            return False, None
        ((claims, *row),) = db.execute(f"select claims, {COLUMNS} from job where id = ?", (number,)).fetchall()
        message = from_row(row, delivery.message.queue)
        cancelled = pauses_and_cancels.cancelled_by(db, self._exchange, message) is not None
        if claims or cancelled or message.job != delivery.message.job or runs_alone(message):
            return True, None
        return True, self._claim(db, delivery.slot, query)

    def _claim(self, db: sqlite3.Connection, slot: int, query: tuple[str, tuple[int, ...]]) -> Delivery | None:
        first, numbers = query
        rows = db.execute(
            f"update job set holder = ?, slot = ?, held_until = null, claims = claims + 1 where id = {first}"
            f" returning id, claims, deaths, queue, tenant, {COLUMNS}",
            (self._holder, slot, *numbers),
        ).fetchall()
        if not rows:
            return None
        number, times, deaths, queue, tenant, *row = rows[0]
        if tenant is not None:
            fair_queue.take_turn(db, queue, tenant, self._order)
        message = from_row(row, self._served_queues.name(queue))
        if message.lock_for is not None:
            db.execute(
                "update job set held_until = ? where id = ?", (time.time() + message.lock_for + LOCK_LAG, number)
            )
        by = pauses_and_cancels.cancelled_by(db, self._exchange, message)
        return Delivery(
            message=message,
            slot=slot,
            token=Claim(number, self._holder, times),
            redelivered=times > 1,
            cancelled=by is not None,
            cancelled_by=by or "",
            deaths=tuple(deaths.split()),
        )


def _found(db: sqlite3.Connection, query: tuple[str, tuple[int, ...]]) -> int | None:
    first, numbers = query
    ((found,),) = db.execute(f"select {first}", numbers).fetchall()
    return None if found is None else int(found)
