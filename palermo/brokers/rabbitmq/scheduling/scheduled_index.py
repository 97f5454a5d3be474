"""The index of the jobs in buckets: the leader creates it for the first listing, and then keeps it up to date.

Law: the index only determines what a listing shows, and which queues must be read to change jobs. Which jobs are
cancelled, moved or run depends on the queues alone.

Only the leader adds jobs to a bucket and removes them, so it reads a bucket once and then records its own changes. The
intakes, which publishers fill, are read again for each request.

Cost: a copy of all waiting jobs in a temporary file (TempIndex), dropped ten minutes after the last request.
"""

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

from palermo.brokers.rabbitmq.amqp.messages import Got, Properties, to_message
from palermo.contract.scheduled import ScheduledFilter
from palermo.core.message import Message
from palermo.temp_index import Database, TempIndex

#: Seconds without a request after which the index is dropped.
_UNUSED = 600.0

#: KiB of memory for SQLite's cache.
_CACHE = 8_192

_TABLES = """
create table job (
    number integer primary key,
    place text not null,
    id text not null,
    queue text not null,
    job text not null,
    due real not null,
    retries integer not null,
    properties blob not null,
    body blob not null
);
create index by_place on job (place, id);
create index by_due on job (due, id);
create index by_id on job (id);
"""

_INSERT = "insert into job (place, id, queue, job, due, retries, properties, body) values (?, ?, ?, ?, ?, ?, ?, ?)"


class ScheduledIndex:
    """The index of one leader."""

    def __init__(self) -> None:
        #: The buckets that are completely indexed.
        self.known = set[str]()
        self._db: Database
        self._used_at = 0.0
        self._index = TempIndex(_TABLES, name="the index of scheduled jobs", cache_kib=_CACHE, opened=self._opened)

    def _opened(self, db: Database) -> None:
        self._db, self.known = db, set()

    def add(self, jobs: Iterable[tuple[str, Got]]) -> None:
        """Add jobs, each with its place. Raises StoreInvalid."""
        with self._index.write():
            self._db.executemany(_INSERT, (_row(place, got) for place, got in jobs))

    def remove(self, place: str, ids: Iterable[str]) -> None:
        """Remove jobs that no longer exist. Raises StoreInvalid."""
        with self._index.write():
            self._db.executemany("delete from job where place = ? and id = ?", ((place, id) for id in ids))

    def forget(self, place: str) -> None:
        """Remove all jobs of a place, to read it again. Raises StoreInvalid."""
        self.known.discard(place)
        with self._index.write():
            self._db.execute("delete from job where place = ?", (place,))

    def find(self, chosen: ScheduledFilter, offset: int, limit: int) -> tuple[list[Message], int]:
        """A page of the matching jobs, soonest first, and their total number. Raises StoreInvalid.

        Jobs that are due together are ordered by id, because their numbers change as they move between buckets.
        """
        where, values = _where(chosen)
        with self._index.read():
            rows = self._db.execute(
                f"select properties, body from job where {where} order by due, id limit ? offset ?",
                (*values, limit, offset),
            ).fetchall()
            ((total,),) = self._db.execute(f"select count(*) from job where {where}", values).fetchall()
        return [to_message(Properties().decode(properties), body, taken_from=None) for properties, body in rows], total

    def places(self, chosen: ScheduledFilter) -> list[str]:
        """The places of the matching jobs. Raises StoreInvalid."""
        where, values = _where(chosen)
        with self._index.read():
            return [place for (place,) in self._db.execute(f"select distinct place from job where {where}", values)]

    def use(self) -> None:
        """Record a request."""
        self._used_at = time.monotonic()

    def drop_unused(self) -> None:
        """Drop everything if there was no request for a while."""
        if self.known and time.monotonic() - self._used_at > _UNUSED:
            self._index.reset()

    def close(self) -> None:
        """Drop everything permanently."""
        self._index.close()


def _row(place: str, got: Got) -> tuple[Any, ...]:
    encoded = got.encoded
    one = to_message(got.properties, b"", taken_from=None)
    return place, one.id, one.queue, one.job, one.run_at or 0.0, one.failure is not None, encoded, got.body


def _where(chosen: ScheduledFilter) -> tuple[str, Sequence[Any]]:
    """The SQL condition for the filter, and its values."""
    conditions: list[tuple[str, Any]] = [("true", ())]
    if chosen.ids is not None:
        conditions.append(("id in (select value from json_each(?))", (json.dumps(sorted(chosen.ids)),)))
    if chosen.due is not None:
        conditions.append(("due between ? and ?", chosen.due))
    if chosen.retries is not None:
        conditions.append(("retries = ?", (chosen.retries,)))
    conditions += [(f"fits({name}, ?)", (text,)) for name in ("queue", "job") if (text := getattr(chosen, name))]
    return " and ".join(one for one, _ in conditions), [value for _, values in conditions for value in values]
