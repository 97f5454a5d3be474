"""The queues that one worker serves, and the SQL that finds its next job."""

import random
import sqlite3
from functools import cache

from palermo.brokers.sqlite import marks, tenants
from palermo.core.patterns import Place, QueueSelection, drawn

#: SQLite functions take 127 arguments; more queues than this are nested.
_QUEUES_PER_CALL = 50


class Served:
    """Which queues there are to serve, as of the queue table's state that was seen last."""

    def __init__(self, exchange: str, selection: QueueSelection) -> None:
        self._exchange = exchange
        self._selection = selection
        self._names: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        #: Those that are not paused, in order of priority.
        self._places: dict[str, Place] = {}
        self._known: int | None = None

    def name(self, number: int) -> str:
        """The queue with this number."""
        return self._names[number]

    def look(self, db: sqlite3.Connection) -> tuple[str, tuple[int, ...]]:
        """SQL for the number of the job to take next, null if none waits, and what it is to be executed with."""
        self._resolve(db)
        names = drawn(self._places, random.random) if self._selection.shared else self._places
        return _asking([self._numbers[name] for name in names])

    def look_into(self, db: sqlite3.Connection, queue: str) -> tuple[str, tuple[int, ...]] | None:
        """The same for the next job of one queue; None if that is not served now."""
        self._resolve(db)
        return _asking([self._numbers[queue]]) if queue in self._places else None

    def _resolve(self, db: sqlite3.Connection) -> None:
        """Learn which queues there are and which are paused, if that has changed."""
        ((version,),) = db.execute("select value from meta where key = 'queues'").fetchall()
        if version == self._known:
            return
        rows = db.execute("select name, id from queue where exchange = ? and not hidden", (self._exchange,)).fetchall()
        known: dict[str, int] = dict(rows)
        paused = marks.paused(db, self._exchange)
        places = self._selection.places(known)
        self._places = {name: place for name, place in places.items() if name in known and name not in paused}
        self._numbers = known
        self._names = {number: name for name, number in known.items()}
        self._known = version


def _asking(numbers: list[int]) -> tuple[str, tuple[int, ...]]:
    """The SQL for these queues; each is asked for what is nobody's, and then for what is its tenants'."""
    return _first(len(numbers)), tuple(number for queue in numbers for number in (queue, queue))


@cache
def _first(queues: int) -> str:
    """SQL for the job to take first, in the first of so many queues that has one.

    coalesce looks no further than it must.
    """
    one = (
        "(select id from job where queue = ? and holder is null and tenant is null order by priority desc, id limit 1)"
    )
    groups = [min(_QUEUES_PER_CALL, queues - start) for start in range(0, queues, _QUEUES_PER_CALL)]
    return _coalesce([_coalesce([one, tenants.FIRST] * size) for size in groups])


def _coalesce(parts: list[str]) -> str:
    return f"coalesce({', '.join([*parts, 'null', 'null'])})"
