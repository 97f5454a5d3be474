"""Find and claim the next job in the queues that one worker serves."""

import sqlite3
import time
from functools import cache

from palermo.brokers.features.consumer import Claim
from palermo.brokers.features.served_queues import ServedQueues
from palermo.brokers.sqlite.tables import pauses_and_cancels
from palermo.brokers.sqlite.tables.jobs import COLUMNS, LISTED, TENANTS_NEXT_JOB, from_row, take_turn
from palermo.contract.admission import runs_alone
from palermo.contract.broker import Delivery
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection

#: SQLite functions take up to 127 arguments. For more queues than this, calls are nested.
_QUEUES_PER_CALL = 50


def _next_job_query(numbers: list[int]) -> tuple[str, tuple[int, ...]]:
    """The SQL for these queues. Queries each queue for jobs without a tenant, then for its tenants' jobs."""
    return _first_job(len(numbers)), tuple(number for queue in numbers for number in (queue, queue))


@cache
def _first_job(queues: int) -> str:
    """SQL for the next job in the first queue that has one; `queues` is the number of queues.

    coalesce evaluates only as many queues as necessary.
    """
    one = (
        "(select id from job where queue = ? and holder is null and tenant is null order by priority desc, id limit 1)"
    )
    groups = [min(_QUEUES_PER_CALL, queues - start) for start in range(0, queues, _QUEUES_PER_CALL)]
    return _coalesce([_coalesce([one, TENANTS_NEXT_JOB] * size) for size in groups])


def _coalesce(parts: list[str]) -> str:
    return f"coalesce({', '.join([*parts, 'null', 'null'])})"


class JobClaimer:
    """Finds and claims jobs for one consumer, inside the caller's transaction."""

    def __init__(
        self, exchange: str, holder: int, selection: QueueSelection, *, order: str, worker: str, resumes: bool
    ) -> None:
        """`order` is the order in which a queue's tenants are served.

        `resumes` says that the holder has jobs which this worker claimed in an earlier session.
        """
        self._worker = worker
        #: Whether some of those jobs are possibly not delivered again yet.
        self.resumes = resumes
        self._exchange = exchange
        self._holder = holder
        self._served = ServedQueues(selection)
        #: The queues' numbers and names.
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._order = order

    def find(self, db: sqlite3.Connection) -> int | None:
        """The number of the next job; None if no job waits."""
        own = self._found_own(db)
        if own is not None:
            return own
        self.resumes = False
        return _found(db, self._next_job(db))

    def queue_of_next(self, db: sqlite3.Connection) -> set[str]:
        """The queue of the next job, as a set; empty if no job waits."""
        next = _found(db, self._next_job(db))
        query = "select queue.name from job join queue on queue.id = job.queue where job.id = ?"
        return {name for (name,) in db.execute(query, (next,)).fetchall()}

    def claim(self, db: sqlite3.Connection, slot: int) -> Delivery | None:
        """Claim the next job for this slot; None if no job waits. Jobs of an earlier session come first."""
        own = self._found_own(db)
        return self._claim(db, slot, self._next_job(db)) if own is None else self._resume(db, slot, own)

    def _next_job(self, db: sqlite3.Connection) -> tuple[str, tuple[int, ...]]:
        """SQL for the number of the next job, with its values. Selects null if no job waits."""
        self._read_queues(db)
        return _next_job_query([self._numbers[name] for name in self._served.order()])

    def _read_queues(self, db: sqlite3.Connection) -> None:
        """Read the existing and the paused queues again if they changed."""
        ((version,),) = db.execute("select value from meta where key = 'queues'").fetchall()
        if version != self._served.version:
            self._numbers = dict(db.execute(f"select name, id from queue where {LISTED}", (self._exchange,)).fetchall())
            self._names = {number: name for name, number in self._numbers.items()}
            self._served.update(version, self._numbers, pauses_and_cancels.paused(db, self._exchange))

    def _found_own(self, db: sqlite3.Connection) -> int | None:
        """The number of a job that the holder has from an earlier session and that has no slot yet."""
        if not self.resumes:
            return None
        return _found(db, ("min(id) from job where holder = ? and slot is null", (self._holder,)))

    def _resume(self, db: sqlite3.Connection, slot: int, number: int) -> Delivery:
        """Deliver a job again that this worker still runs or has run."""
        ((times, deaths, queue, *row),) = db.execute(
            "update job set slot = ?, claims = claims + 1 where id = ?"
            f" returning claims, deaths, (select name from queue where id = job.queue), {COLUMNS}",
            (slot, number),
        ).fetchall()
        message = from_row(row, queue)
        claim = Claim(number, self._holder, times, message.id)
        return self._delivery(db, claim, slot, message, deaths, running_at=self._worker)

    def claim_similar(self, db: sqlite3.Connection, delivery: Delivery) -> tuple[bool, Delivery | None]:
        """Claim another job of the delivery's queue, to run together with it.

        Returns whether the queue has another job, and the job, or None if it was not claimed.
        """
        self._read_queues(db)
        if delivery.message.queue not in self._served:
            return True, None
        query = _next_job_query([self._numbers[delivery.message.queue]])
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
            take_turn(db, queue, tenant, self._order)
        message = from_row(row, self._names[queue])
        if message.rerun_after is not None:
            db.execute("update job set held_until = ? where id = ?", (time.time() + message.rerun_after, number))
        return self._delivery(db, Claim(number, self._holder, times, message.id), slot, message, deaths)

    def _delivery(
        self, db: sqlite3.Connection, claim: Claim, slot: int, message: Message, deaths: str, running_at: str = ""
    ) -> Delivery:
        by = pauses_and_cancels.cancelled_by(db, self._exchange, message)
        return Delivery(
            message=message,
            slot=slot,
            token=claim,
            redelivered=claim.times > 1,
            cancelled=by is not None,
            cancelled_by=by or "",
            deaths=tuple(deaths.split()),
            running_at=running_at,
        )


def _found(db: sqlite3.Connection, query: tuple[str, tuple[int, ...]]) -> int | None:
    first, numbers = query
    ((found,),) = db.execute(f"select {first}", numbers).fetchall()
    return None if found is None else int(found)
