"""Statistics from the journal's `counts` records: of the last hour, day, week and month, or since any instant.

A reader such as palermo.history.journal_reader passes batches to a view, which any thread may query. Memory is limited
by the number of cells, not by the size of the journal. `now` is always in Unix seconds.
"""

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from msgspec import Struct

from palermo.client.client import Client
from palermo.contract.clock import now
from palermo.contract.journal import ReadFrom
from palermo.contract.row_types import StatisticsRow
from palermo.contract.rows import Row, iso_instant
from palermo.core.failure import printable
from palermo.core.journal_records import RecordBatch, RecordKind
from palermo.history.journal_reader import OnProgress, read_to_end
from palermo.history.series import COARSE, FINE, MOST_CELLS, Cell, Dimension, Series, Tally, Window, begin

#: Seconds after a deploy in which a worker that starts with the previous release doesn't count as another deploy.
ROLLING = 900.0

#: Maximum number of deploys. The newest are kept.
MOST_DEPLOYS = 200

#: The dimensions with a series per name.
DIMENSIONS = ("queue", "job", "worker")

#: Maximum number of sums that aren't in their cells yet. Each writer's counts are first added up per shortest cell. A
#: query moves all sums into their cells.
_STAGED = 2_000

#: The possible cell lengths in seconds of a report between two instants, and the maximum number of cells.
_CELLS, _MOST_CELLS = (10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3_600.0), 120

#: Minimum number of seconds for a rate.
_SHORTEST = 1.0

#: Seconds between removals of old data.
_PRUNE = 60.0

#: The start of a cell, and a queue, job and worker.
_Key = tuple[float, str, str, str]

#: Maximum number of separate queues, jobs and workers, each. Later ones are combined.
MOST_NAMES = 10_000

#: The fields of a queue that is known only from the journal, and of a worker that has ended.
_NO_QUEUE = {"pending": 0, "in_progress": 0, "workers": 0, "paused": False}
_NO_WORKER = {"state": None, "started_at": None, "slots": None}


class Deploy(Struct, frozen=True):
    """The start of the first worker of a release."""

    #: Unix seconds.
    at: float
    release: str


class Deploys:
    """The deploys in a journal, oldest first. Each worker reports its release when it starts."""

    def __init__(self) -> None:
        self._known: list[Deploy] = []

    def up(self, at: float, release: str) -> None:
        """Record that a worker of this release started. It is a deploy if the release has changed."""
        if not release or any(deploy.release == release for deploy in self._known[-1:]):
            return
        if any(deploy.release == release for deploy in self._known[-2:-1]) and at - self._known[-1].at < ROLLING:
            return
        self._known.append(Deploy(at, release))
        del self._known[:-MOST_DEPLOYS]

    @property
    def newest(self) -> Deploy | None:
        """Return the last deploy, or None."""
        return self._known[-1] if self._known else None

    def since(self, at: float) -> list[Deploy]:
        """Return the deploys at this instant (Unix seconds) or later."""
        return [deploy for deploy in self._known if deploy.at >= at]


class Named(Struct, frozen=True):
    """The tally of a queue, job or worker. The name is None for combined ones."""

    name: str | None
    tally: Tally


class Rates(Struct, frozen=True):
    """Jobs of a queue per second: enqueued by Palermo's clients, and processed."""

    enqueued: float
    ended: float


class Report(Struct, frozen=True, kw_only=True):
    """The statistics of a period up to now, of everything or of one queue, job or worker."""

    #: Start and end in Unix seconds, and the time of the first data.
    since: float
    until: float
    known: float
    total: Tally
    #: The cells of a window, oldest first; empty for a period that isn't a window.
    cells: list[Cell]
    deploys: list[Deploy]
    #: The tallies of each dimension, busiest first; only in a report about everything.
    parts: Mapping[str, list[Named]]
    #: Number of records that writers reported as lost while the journal was unavailable.
    lost: int


class _Noted:
    """Data from records other than counts."""

    def _clear(self) -> None:
        #: The time of the oldest record read.
        self.begins: float | None = None
        self.deploys = Deploys()
        #: The number of records lost while the journal was unavailable, by instant.
        self._lost: dict[float, int] = {}

    def _note(self, record: Mapping[str, Any], at: float) -> None:
        if self.begins is None or at < self.begins:
            self.begins = at
        match record["kind"]:
            case RecordKind.WORKER_UP if isinstance(release := record.get("release"), str):
                self.deploys.up(at, release)
            case RecordKind.LOST if isinstance(count := record.get("count"), int):
                self._lost[at] = self._lost.get(at, 0) + count


class Statistics(_Noted):
    """The statistics from one exchange's journal. Thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = now, most_cells: int = MOST_CELLS) -> None:
        self._clock = clock
        self._most = most_cells
        self._lock = threading.Lock()
        self._clear()

    def take(self, batch: RecordBatch) -> None:
        with self._lock:
            now = self._clock()
            for record in batch.records:
                at = record["at"]
                if isinstance(at, int | float):
                    # A record from a clock that is ahead counts as of now.
                    at = min(float(at), now)
                    self._note(record, at)
                    if record["kind"] == RecordKind.COUNTS:
                        key = (_step(at, now), _name(record, "queue"), _name(record, "job"), batch.writer)
                        self._staged.setdefault(key, Tally()).read(record)
            if len(self._staged) > _STAGED:
                self._settle(now)

    def reset(self) -> None:
        with self._lock:
            self._clear()

    def report(
        self, window: Window, *, queue: str | None = None, job: str | None = None, worker: str | None = None
    ) -> Report | None:
        """Report on a window up to now, optionally for one queue, job or worker; None if it is unknown."""
        with self._counted() as now:
            named = {"queue": queue, "job": job, "worker": worker}
            chosen = next(((by, name) for by, name in named.items() if name is not None), None)
            series: Series | None = self._all if chosen is None else self._by[chosen[0]].get(chosen[1])
            if series is None:
                return None
            since = begin(window, now)
            return Report(
                since=since,
                until=now,
                known=now if self.begins is None else max(since, self.begins),
                total=series.total(window, now),
                cells=series.cells(window, now),
                deploys=self.deploys.since(since),
                parts={} if chosen else {by: self._ranked(by, window, now) for by in DIMENSIONS},
                lost=sum(count for at, count in self._lost.items() if at >= since),
            )

    def recent_jobs(self, seconds: float) -> list[Named]:
        """Return the tally of each job over about the last `seconds`, at most an hour."""
        with self._counted() as now:
            return [Named(*each) for each in self._by["job"].totals(Window.HOUR, now, now - seconds)]

    def rates(self, queues: Iterable[str]) -> dict[str, Rates]:
        """Return the rates of these queues over the last two to four minutes: the current cell and the one before.

        Queues whose rates are unknown are omitted.
        """
        with self._counted() as now:
            cell = COARSE[Window.HOUR].cell
            since = (now // cell - 1) * cell
            seconds = 0.0 if self.begins is None else now - max(since, self.begins)
            known = self._by["queue"]
            found = {}
            for name in queues if seconds >= _SHORTEST else ():
                series = known.get(name)
                if series is not None or known.others is None:
                    tally = Tally() if series is None else series.total(Window.HOUR, now, since)
                    found[name] = Rates(tally.number(RecordKind.ENQUEUED) / seconds, tally.processed / seconds)
            return found

    def counts(self, window: Window, by: str, names: Iterable[str]) -> dict[str, list[tuple[int, int]]]:
        """Return the number of successful and failed runs in each part of a window, oldest first, by name.

        `by` is "queue", "job" or "worker". Unknown names are omitted.
        """
        with self._counted() as now:
            known = ((name, self._by[by].get(name)) for name in names)
            return {name: series.counts(window, now) for name, series in known if series is not None}

    @contextmanager
    def _counted(self) -> Iterator[float]:
        """Enter a block in which all counts are up to date. Its value is the current time in Unix seconds."""
        with self._lock:
            now = self._clock()
            self._settle(now)
            yield now

    # -- internals, called with the lock held

    def _clear(self) -> None:
        super()._clear()
        self._staged: dict[_Key, Tally] = {}
        self._all = Series(FINE)
        self._by = {by: Dimension(self._most) for by in DIMENSIONS}
        self._pruned = 0.0

    def _settle(self, now: float) -> None:
        """Move the pending sums into their cells, and drop old data."""
        for (at, queue, job, worker), tally in self._staged.items():
            if not tally.numbers:
                continue
            self._all.add(at, tally, now)
            for by, name in (("queue", queue), ("job", job), ("worker", worker if tally.has_runs else "")):
                if name:
                    self._by[by].add(name, at, tally, now)
        self._staged.clear()
        if not 0 <= now - self._pruned < _PRUNE:
            self._pruned = now
            self._all.prune(now)
            for dimension in self._by.values():
                dimension.prune(now)
            oldest = begin(Window.MONTH, now)
            self._lost = {at: count for at, count in self._lost.items() if at >= oldest}

    def _ranked(self, by: str, window: Window, now: float) -> list[Named]:
        found = [Named(name, tally) for name, tally in self._by[by].totals(window, now)]
        return sorted(found, key=rank)


def rank(each: Named) -> tuple[bool, int, int, str]:
    """Sort key: busiest first, combined ones last."""
    tally = each.tally
    return each.name is None, -tally.processed, -tally.number(RecordKind.ENQUEUED), each.name or ""


def _step(at: float, now: float) -> float:
    """Return the start of the shortest cell that contains an instant."""
    cell = next((grid.cell for window, grid in FINE.items() if at >= begin(window, now)), FINE[Window.MONTH].cell)
    return at // cell * cell


def _name(record: Mapping[str, Any], field: str) -> str:
    value = record.get(field)
    return value if isinstance(value, str) else ""


# -- since any instant, or between two: reads the journal once per report


class Summary(_Noted):
    """The sums between two instants. Records of the journal that are not read yet are missing."""

    def __init__(self, since: float, until: float = math.inf, *, cell: float = 0.0, **chosen: str) -> None:
        """`since` and `until` are in Unix seconds; `cell` is the length of the report's cells in seconds.

        `chosen` limits the report to one queue, job or worker, named by its dimension.
        """
        self._since, self._until, self._cell, self._chosen = since, until, cell, chosen
        self.reset()

    def reset(self) -> None:
        self._clear()
        self._total = Tally()
        self._cells: dict[int, Tally] = {}
        self._parts: dict[str, dict[str | None, Tally]] = {by: {} for by in DIMENSIONS}

    def take(self, batch: RecordBatch) -> None:
        """Add the records of a batch within the period."""
        for record in batch.records:
            at = record["at"]
            if isinstance(at, int | float) and self._since <= at < self._until:
                self._note(record, at)
                if record["kind"] == RecordKind.COUNTS:
                    self._count(batch.writer, record, at)

    def report(self, now: float) -> Report:
        return Report(
            since=self._since,
            until=now,
            known=now if self.begins is None else self.begins,
            total=self._total,
            cells=[
                Cell(self._since + nth * self._cell, self._cell, self._cells.get(nth, Tally()))
                for nth in range(math.ceil((now - self._since) / self._cell) if self._cell else 0)
            ],
            deploys=self.deploys.since(self._since),
            parts={
                by: sorted((Named(name, tally) for name, tally in parts.items()), key=rank)
                for by, parts in self._parts.items()
            },
            lost=sum(self._lost.values()),
        )

    def _count(self, writer: str, record: Mapping[str, Any], at: float) -> None:
        names = (("queue", record.get("queue")), ("job", record.get("job")), ("worker", writer))
        tally = Tally()
        tally.read(record)
        if not tally.numbers or any(self._chosen.get(by, name) != name for by, name in names):
            return
        self._total.merge(tally)
        if self._cell:
            self._cells.setdefault(int((at - self._since) // self._cell), Tally()).merge(tally)
        for by, name in names:
            if not isinstance(name, str) or not name or (by == "worker" and not tally.has_runs):
                continue
            parts = self._parts[by]
            kept = name if name in parts or len(parts) < MOST_NAMES else None
            parts.setdefault(kept, Tally()).merge(tally)


def summarize(client: Client, since: float, progress: OnProgress | None = None) -> Report:
    """Report since an instant in Unix seconds. Raises BrokerUnavailable, BrokerRefused."""
    summary = Summary(since)
    read_to_end(client, [summary], ReadFrom(since=since), progress=progress)
    return summary.report(now())


def summarize_range(client: Client, since: float, until: float, **chosen: str) -> Report:
    """Report between two instants in Unix seconds, optionally for one queue, job or worker.

    The period is extended to about a hundred whole cells. Reads that part of the journal. Raises BrokerUnavailable,
    BrokerRefused.
    """
    cell = next((size for size in _CELLS if until - since <= _MOST_CELLS * size), _CELLS[-1])
    begin, end = since // cell * cell, -(-until // cell) * cell
    summary = Summary(begin, end, cell=cell, **chosen)
    read_to_end(client, [summary], ReadFrom(since=begin), until=end)
    return summary.report(end)


# -- as rows


def report_row(report: Report, queues: Iterable[Row], workers: Iterable[Row]) -> StatisticsRow:
    """Return a report as a row, with existing queues and workers and their counts, busiest first.

    `palermo stats --json` and the API return it, so its fields are a contract. Combined names are null (for workers,
    the id is). `known_since` is the time of the journal's oldest record in the period, or null.
    """
    alive = {row["name"]: {name: row[name] for name in _NO_QUEUE} for row in queues}
    up = {row["id"]: {name: row[name] for name in _NO_WORKER} for row in workers}
    row = {
        "since": iso_instant(report.since),
        "until": iso_instant(report.until),
        "known_since": iso_instant(report.known) if report.known < report.until else None,
        "rate": rate(report),
        **report.total.row(),
        "lost": report.lost,
        "queues": list(_parts(report.parts.get("queue", ()), alive, _NO_QUEUE, "name")),
        "jobs": list(_parts(report.parts.get("job", ()), {}, {}, "name")),
        "workers": list(_parts(report.parts.get("worker", ()), up, _NO_WORKER, "id")),
        "deploys": [{"at": iso_instant(deploy.at), "release": printable(deploy.release)} for deploy in report.deploys],
        "series": [
            {"at": iso_instant(cell.start), "seconds": cell.seconds, **cell.tally.row()} for cell in report.cells
        ],
    }
    return cast(StatisticsRow, row)


def rate(report: Report, tally: Tally | None = None) -> float | None:
    """Return jobs processed per second over the known time, or None if that is less than a second."""
    seconds = report.until - report.known
    processed = (report.total if tally is None else tally).processed
    return round(processed / seconds, 3) if seconds >= 1 else None


def _parts(found: Sequence[Named], alive: Mapping[str, Row], absent: Row, key: str) -> Iterable[Row]:
    """Yield the counted names with their current state, then existing names without counts."""
    nothing = Tally().row()
    counted = set()
    for each in found:
        name = None if each.name is None else printable(each.name)
        counted.add(name)
        yield {key: name, **alive.get(name or "", absent), **each.tally.row()}
    for name in sorted(alive.keys() - counted):
        yield {key: name, **alive[name], **nothing}
