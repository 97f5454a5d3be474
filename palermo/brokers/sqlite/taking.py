"""Taking the next job out of the queues that one worker serves: which it is, and the claim on it."""

import sqlite3
import time

from palermo.admission import runs_alone
from palermo.broker import Delivery
from palermo.brokers.sqlite import marks, tenants
from palermo.brokers.sqlite.claims import Claim
from palermo.brokers.sqlite.messages import COLUMNS, from_row
from palermo.brokers.sqlite.served import Served

#: Seconds by which a claim outlasts its `lock_for`: before that the worker kills the run, or the run ends itself.
LOCK_LAG = 2.0


class Taker:
    """What one consumer does in a transaction, or looks at in one, to get a job."""

    def __init__(self, exchange: str, holder: int, served: Served, *, order: str) -> None:
        """`order` is that in which the tenants of a queue are served."""
        self._exchange = exchange
        self._holder = holder
        self._served = served
        self._order = order

    def find(self, db: sqlite3.Connection) -> int | None:
        """The number of the next job; None if none waits."""
        return _found(db, self._served.look(db))

    def queue_of_next(self, db: sqlite3.Connection) -> set[str]:
        """The queue of the next job; none if none waits."""
        rows = db.execute("select queue from job where id = ?", (self.find(db),)).fetchall()
        return {self._served.name(queue) for (queue,) in rows}

    def claim(self, db: sqlite3.Connection, slot: int) -> Delivery | None:
        """The next job, for this slot; None if none waits."""
        return self._claim(db, slot, self._served.look(db))

    def claim_like(self, db: sqlite3.Connection, delivery: Delivery) -> tuple[bool, Delivery | None]:
        """Whether the delivery's queue has another job, and the next one if it may be run together with that."""
        asking = self._served.look_into(db, delivery.message.queue)
        if asking is None:
            return True, None
        number = _found(db, asking)
        if number is None:
            return False, None
        ((claims, *row),) = db.execute(f"select claims, {COLUMNS} from job where id = ?", (number,)).fetchall()
        message = from_row(row, delivery.message.queue)
        cancelled = marks.find(db, self._exchange, message) is not None
        if claims or cancelled or message.job != delivery.message.job or runs_alone(message):
            return True, None
        return True, self._claim(db, delivery.slot, asking)

    def _claim(self, db: sqlite3.Connection, slot: int, asking: tuple[str, tuple[int, ...]]) -> Delivery | None:
        first, numbers = asking
        rows = db.execute(
            f"update job set holder = ?, slot = ?, held_until = null, claims = claims + 1 where id = {first}"
            f" returning id, claims, deaths, queue, tenant, {COLUMNS}",
            (self._holder, slot, *numbers),
        ).fetchall()
        if not rows:
            return None
        number, times, deaths, queue, tenant, *row = rows[0]
        if tenant is not None:
            tenants.served(db, queue, tenant, self._order)
        message = from_row(row, self._served.name(queue))
        if message.lock_for is not None:
            db.execute(
                "update job set held_until = ? where id = ?", (time.time() + message.lock_for + LOCK_LAG, number)
            )
        by = marks.find(db, self._exchange, message)
        return Delivery(
            message=message,
            slot=slot,
            token=Claim(number, self._holder, times),
            redelivered=times > 1,
            cancelled=by is not None,
            cancelled_by=by or "",
            deaths=tuple(deaths.split()),
        )


def _found(db: sqlite3.Connection, asking: tuple[str, tuple[int, ...]]) -> int | None:
    first, numbers = asking
    ((found,),) = db.execute(f"select {first}", numbers).fetchall()
    return None if found is None else int(found)
