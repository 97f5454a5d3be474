"""The queues that one worker serves, and the SQL that finds its next job in them."""

import random
import sqlite3
from functools import cache

from palermo.brokers.sqlite.tables import fair_queue, pauses_and_cancels
from palermo.core.queue_selection import QueueRank, QueueSelection, draw_order

#: SQLite functions take 127 arguments; for more queues than this the calls are nested.
_QUEUES_PER_CALL = 50


class ServedQueues:
    """The queues that a worker serves, as of the queue table's version that was seen last."""

    def __init__(self, exchange: str, selection: QueueSelection) -> None:
        self._exchange = exchange
        self._selection = selection
        self._names: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        #: The queues that are not paused, in order of priority.
        self._places: dict[str, QueueRank] = {}
        self._version: int | None = None

    def name(self, number: int) -> str:
        """The queue with this number."""
        return self._names[number]

    def next_job(self, db: sqlite3.Connection) -> tuple[str, tuple[int, ...]]:
        """SQL for the number of the job to take next, null if none waits; and the SQL's values."""
        self._resolve(db)
        names = draw_order(self._places, random.random) if self._selection.shared else self._places
        return _next_job_query([self._numbers[name] for name in names])

    def next_job_of(self, db: sqlite3.Connection, queue: str) -> tuple[str, tuple[int, ...]] | None:
        """The same as `next_job` for the next job of one queue; None if that is not served now."""
        self._resolve(db)
        return _next_job_query([self._numbers[queue]]) if queue in self._places else None

    def _resolve(self, db: sqlite3.Connection) -> None:
        """Read which queues exist and which are paused, if that has changed."""
        ((version,),) = db.execute("select value from meta where key = 'queues'").fetchall()
        if version == self._version:
            return
        rows = db.execute("select name, id from queue where exchange = ? and not hidden", (self._exchange,)).fetchall()
        known: dict[str, int] = dict(rows)
        paused = pauses_and_cancels.paused(db, self._exchange)
        places = self._selection.places(known)
        self._places = {name: place for name, place in places.items() if name in known and name not in paused}
        self._numbers = known
        self._names = {number: name for name, number in known.items()}
        self._version = version


def _next_job_query(numbers: list[int]) -> tuple[str, tuple[int, ...]]:
    """The SQL for these queues; each is asked first for jobs without a tenant, and then for its tenants' jobs."""
    return _first_job(len(numbers)), tuple(number for queue in numbers for number in (queue, queue))


@cache
def _first_job(queues: int) -> str:
    """SQL for the job to take first, in the first of this many queues that has one.

    coalesce evaluates no more queues than it must.
    """
    one = (
        "(select id from job where queue = ? and holder is null and tenant is null order by priority desc, id limit 1)"
    )
    groups = [min(_QUEUES_PER_CALL, queues - start) for start in range(0, queues, _QUEUES_PER_CALL)]
    return _coalesce([_coalesce([one, fair_queue.NEXT_JOB] * size) for size in groups])


def _coalesce(parts: list[str]) -> str:
    return f"coalesce({', '.join([*parts, 'null', 'null'])})"
