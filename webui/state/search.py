"""A search over jobs in all states: failed, retrying, scheduled, waiting, running and finished.

It uses the data of the pages of these states: the index of failed jobs, the cached listing of scheduled ones, the first
jobs of each queue, the snapshot of the workers, and the index of the journal. Hidden values in arguments are masked
before they are searched. A search is limited, and `Group.unseen` names the parts that it did not search.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from palermo.contract.rows import Listing, Row, iso_instant, silent_text, waits_since
from palermo.core.journal_records import JournalLevel
from palermo.core.text import count
from palermo.core.topology import is_failed
from palermo.errors import NotBrowsable, NotFound
from palermo.history.entry import FINAL, Entry
from palermo.inspector.rates import Snapshot
from palermo.jobs import registry
from palermo.views.facts import facts_of_row
from palermo.views.filter import CHIPS, STATES, Chip, JobFilter
from palermo.webui import tuning
from palermo.webui.failed.failed_jobs import FailedJobs, failed_jobs
from palermo.webui.filters import Paging
from palermo.webui.site import Site, Visit
from palermo.webui.state import listings
from palermo.webui.state.journal_views import JournalViews, journal_views
from palermo.webui.state.live_state import LiveState, live_state, running_jobs
from palermo.webui.state.refreshing import Refreshing
from palermo.webui.state.scheduled_view import StillReading

#: Seconds after which a search leaves out queues that it hasn't read, by depth.
_LONGEST = (tuning.LONG_WAIT, tuning.STALE, tuning.MINUTE)

#: Describes places that have not been searched yet.
_SEARCHED = "which are still being searched"

#: The states in display order. `finished` includes failed jobs, because the history does.
GROUPS = ("failed", "retrying", "scheduled", "waiting", "running", "finished")


class Group(Struct, frozen=True, kw_only=True):
    """The jobs found in one state."""

    #: One of GROUPS.
    state: str
    #: The first rows, created by `_row`.
    rows: tuple[Row, ...] = ()
    #: Number of matches among the searched jobs; None if none was searched.
    total: int | None = 0
    #: The queues in which waiting jobs were found, with their numbers.
    queues: Mapping[str, int] | None = None
    #: Descriptions of parts that were not searched.
    unseen: tuple[str, ...] = ()
    #: The subset of `unseen` that a deeper search covers.
    cut: tuple[str, ...] = ()
    #: Whether repeating the search soon finds more, because something is still being read.
    reading: bool = False


#: The groups of the jobs of one place, by state.
Groups = Mapping[str, Group]


class Found(Struct, frozen=True, kw_only=True):
    query: JobFilter
    groups: tuple[Group, ...]
    depth: int

    @property
    def total(self) -> int:
        return sum(group.total or 0 for group in self.groups)

    @property
    def reading(self) -> bool:
        """Whether repeating the search soon finds more."""
        return any(group.reading for group in self.groups)

    @property
    def unseen(self) -> list[str]:
        """Descriptions of everything that was not searched."""
        return [text for group in self.groups for text in group.unseen]

    @property
    def cut(self) -> list[str]:
        """The subset of `unseen` that a deeper search covers."""
        return [text for group in self.groups for text in group.cut]

    @property
    def deeper(self) -> int | None:
        """The depth at which a search finds more; None if nothing was cut, or there is no greater depth."""
        return next((depth for depth in tuning.DEPTHS if depth > self.depth), None) if self.cut else None


def search(visit: Visit, query: JobFilter, *, limit: int, depth: int) -> Found:
    """Return the jobs that match, at most `limit` per group. Raises BrokerError."""
    return RunningSearch(visit, query, limit=limit, depth=depth).found()


class RunningSearch:
    """The parts of a search, which run simultaneously because they mostly wait for the broker."""

    def __init__(self, visit: Visit, query: JobFilter, *, limit: int, depth: int, soon: bool = False) -> None:
        """With `soon`, scheduled jobs may be a few seconds old, which is enough for pages that repeat the search."""
        self._query, self._depth, self._limit = query, depth, limit
        self._wanted = _wanted(query)
        live = live_state(visit.site)
        # One more thread, because reading the running jobs asks no broker.
        pool = ThreadPoolExecutor(tuning.AT_ONCE + 1)
        # The search starts with the queues of the last snapshot, which may be old, and adds those that only the new one
        # has.
        last, asked = live.sampler.last, pool.submit(live.snapshot)
        looks: dict[str, Callable[[], Groups]] = {
            "failed": lambda: _failed(visit.site, query, limit),
            "finished": lambda: _finished(visit.site, query, limit),
            "scheduled": lambda: _scheduled(visit, query, limit, depth, soon),
            "waiting": lambda: _waiting(visit, query, limit, depth, pool, last, asked),
            "running": lambda: _running(query, asked.result(), limit),
        }
        places = {place for state in self._wanted for place in _places(state)}
        self._looks = {place: pool.submit(look) for place, look in looks.items() if place in places}
        self._all: list[Future[Any]] = [asked, *self._looks.values()]
        # Waiting jobs are the last part that starts others.
        self._looks.get("waiting", self._all[0]).add_done_callback(lambda _: pool.shutdown(wait=False))

    @property
    def over(self) -> bool:
        """Whether all parts have ended."""
        return all(look.done() for look in self._all)

    def found(self, within: float | None = None) -> Found:
        """Return the results of all parts; if `within` is given, only of parts that end within that number of seconds.
        Raises BrokerError.
        """
        wait(self._all, within)
        groups = tuple(self._group(state) for state in GROUPS if state in self._wanted)
        return Found(query=self._query, groups=groups, depth=self._depth)

    def _group(self, state: str) -> Group:
        first, *others = parts = [self._part(place, state) for place in _places(state)]
        if not others:
            return first
        # If there are other groups, they mention what was not searched.
        shown = parts if len(self._wanted) == 1 else []
        reading = first.reading or any(part.reading for part in shown)
        return Group(
            state=state,
            rows=tuple(row for part in parts for row in part.rows)[: self._limit],
            total=None if reading else sum(part.total or 0 for part in parts),
            unseen=tuple(text for part in shown for text in part.unseen),
            cut=tuple(text for part in shown for text in part.cut),
            reading=reading,
        )

    def _part(self, place: str, state: str) -> Group:
        look = self._looks[place]
        if not look.done():
            return Group(state=state, total=None, unseen=(f"{place} jobs, {_SEARCHED}",), reading=True)
        return look.result()[state]


class UnfinishedSearches:
    """Searches whose page was shown before they ended. The next request continues them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, int], tuple[float, RunningSearch]] = {}

    def take(self, text: str, depth: int) -> RunningSearch | None:
        """Return the search for this text and depth that a page has recently left unfinished."""
        now = time.monotonic()
        with self._lock:
            self._kept = {key: each for key, each in self._kept.items() if now - each[0] < tuning.RECENT}
            return self._kept.pop((text, depth), (0.0, None))[1]

    def keep(self, text: str, depth: int, running: RunningSearch) -> None:
        """Keep a search for the next request."""
        with self._lock:
            self._kept[text, depth] = (time.monotonic(), running)


def search_soon(visit: Visit, text: str, query: JobFilter, *, limit: int, depth: int) -> Found:
    """Return what a search finds within a moment; the next call with the same text has the rest. Raises BrokerError."""
    unfinished = visit.site.component(UnfinishedSearches, UnfinishedSearches)
    running = unfinished.take(text, depth) or RunningSearch(visit, query, limit=limit, depth=depth, soon=True)
    found = running.found(tuning.GLANCE * visit.site.client.settings.publish_timeout)
    if not running.over:
        unfinished.keep(text, depth, running)
    return found


def _places(state: str) -> tuple[str, ...]:
    """The places that have jobs in a state. A retry whose time has come waits in its queue."""
    return ("scheduled", "waiting") if state == "retrying" else (state,)


def _wanted(query: JobFilter) -> set[str]:
    """Return the groups that a query selects."""
    groups = {"done": {"finished"}, "discarded": {"finished"}, "cancelled": {"waiting", "finished"}}
    return set().union(*(groups.get(state, {state}) for state in query.states)) or set(GROUPS)


# -- the parts


def _failed(site: Site, query: JobFilter, limit: int) -> Groups:
    known = failed_jobs(site)
    state = known.view.update(tuning.WAIT)
    if not state.ready:
        text = f"failed jobs, which are still being read: {state.seen:,} of {state.total or state.behind:,} so far"
        return _one(Group(state="failed", total=None, unseen=(text,), reading=True))
    found = known.page(query, Paging(limit=limit), newest=True)
    unseen = f"{count(state.unseen, 'failed job')} in quorum queues that cannot be read"
    rows = tuple(_row(row, row["failed_at"]) for row in found.rows)
    return _one(Group(state="failed", rows=rows, total=found.total, unseen=(unseen,) if state.unseen > 0 else ()))


def _scheduled(visit: Visit, query: JobFilter, limit: int, depth: int, soon: bool) -> Groups:
    # The broker applies the filters that it supports before the limit. Words are searched here in the first remaining
    # jobs.
    state = query.state if query.state in ("retrying", "scheduled") else None
    chosen = JobFilter(
        queue=query.queue, job=query.job, state=state, due_from=query.due_from, due_until=query.due_until
    )
    try:
        listing = listings.scheduled(visit, chosen, Paging(limit=depth), soon=soon)
    except StillReading:
        text = "scheduled jobs and retries, which are still being read"
        return _split("scheduled", (), limit, unseen=(text,), reading=True)
    rows: list[Row] = [
        {**_row(row, row["failed_at"] or row["created_at"]), "run_at": row["run_at"]}
        for row in _fitting(query, listing.rows)
    ]
    behind = (listing.total or 0) - len(listing.rows)
    text = f"scheduled jobs and retries that are due after the first {len(listing.rows):,} ({behind:,})"
    left_out = (text,) if behind > 0 else ()
    return _split("scheduled", rows, limit, unseen=left_out, cut=left_out)


def _waiting(
    visit: Visit,
    query: JobFilter,
    limit: int,
    depth: int,
    pool: Executor,
    last: Snapshot | None,
    asked: Future[Snapshot],
) -> Groups:
    until = time.monotonic() + _LONGEST[tuning.DEPTHS.index(depth)]
    most_queues = tuning.SOME if depth == tuning.DEPTHS[0] else None
    # Reading a page of a queue holds all jobs before it.
    most = min(depth, tuning.DEPTH)
    reads: dict[str, Future[Listing[Row] | None]] = {}

    def begin(snapshot: Snapshot) -> list[str]:
        """Start reading the queues with the fewest jobs. Returns the names of those left out."""
        filled = sorted(
            (row["pending"], row["name"]) for row in snapshot.queues if row["pending"] and not is_failed(row["name"])
        )
        names = [name for _, name in filled if query.fits_name("queue", name)]
        for name in names[:most_queues]:
            if name not in reads:
                reads[name] = pool.submit(look, name)
        return [name for name in names if name not in reads]

    def look(name: str) -> Listing[Row] | None:
        if time.monotonic() > until:
            return None
        return listings.jobs(visit, name, paging=Paging(limit=most), filter=query, depth=most)

    if last is not None:
        begin(last)
    left_out = begin(asked.result())
    rows: list[Row] = []
    unseen: list[str] = []
    cut: list[str] = []
    for name, read in reads.items():
        try:
            found = read.result()
        except NotFound:
            continue
        except NotBrowsable:
            unseen.append(f"waiting jobs of {name}, because quorum queues cannot be read")
            continue
        if found is None:
            left_out.append(name)
            continue
        rows += [_row(row, waits_since(row)) for row in found.rows]
        if found.unseen:
            cut.append(f"waiting jobs of {name} after its first {most:,} ({found.unseen:,})")
    if left_out:
        cut.append(
            f"waiting jobs of {', '.join(left_out[:5])}"
            + (f" and {len(left_out) - 5:,} more queues" if len(left_out) > 5 else "")
        )
    groups = _split("waiting", rows, limit, unseen=(*unseen, *cut), cut=tuple(cut))
    held = Counter(row["queue"] for row in rows if row["state"] != "retrying")
    return {**groups, "waiting": replace(groups["waiting"], queues=held)}


def _running(query: JobFilter, snapshot: Snapshot, limit: int) -> Groups:
    if query.tenant:
        text = "running jobs, whose tenants are not known"
        return _one(Group(state="running", total=None, unseen=(text,)))
    unknown = {"state": "running", "error": None, "tenant": None}
    jobs = [{**job, **unknown} for job in running_jobs(snapshot)]
    rows = [_row(job, job["started_at"]) for job in _fitting(query, jobs)]
    silent = silent_text(snapshot.workers)
    unseen = (f"jobs of workers that do not answer ({silent})",) if silent else ()
    return _one(Group(state="running", rows=tuple(rows[:limit]), total=len(rows), unseen=unseen))


def _finished(site: Site, query: JobFilter, limit: int) -> Groups:
    views = journal_views(site)
    why = "whose tenants are not recorded" if query.tenant else ""
    why = "because the journal is off" if views.off else why
    progress = views.wait_until_read(0 if why else tuning.WAIT)
    if why or not progress.ready:
        text = why or f"which are still being read ({count(progress.records, 'record')} so far)"
        return _one(Group(state="finished", total=None, unseen=(f"finished jobs, {text}",), reading=not why))
    ended = [state for state in query.states if state in FINAL and state != "failed"]
    filter = replace(query, state=",".join(ended) or None)
    entries = views.index.page(filter, offset=0, limit=limit)
    unseen = []
    if views.level is not JournalLevel.ALL:
        unseen.append('jobs that succeeded, which are only counted unless the journal setting is "all"')
    if views.index.cut:
        unseen.append("older finished jobs")
    found = tuple(_row(_shown(views, entry), iso_instant(entry.at)) for entry in entries)
    return _one(Group(state="finished", rows=found, total=views.index.count(filter), unseen=tuple(unseen)))


def _shown(views: JournalViews, entry: Entry) -> Row:
    """Return a finished job with its arguments, or why it was discarded or cancelled."""
    row = entry.row()
    arguments = views.arguments.text(entry.id, entry.job, entry.queue, entry.more)
    return {**row, "preview": row["reason"] or arguments, "tenant": None}


# -- rows


def _one(group: Group) -> Groups:
    return {group.state: group}


def _split(place: str, rows: Sequence[Row], limit: int, **left_out: Any) -> Groups:
    """The jobs of a place in two groups: those waiting for a retry, and the others."""
    by_state: dict[str, list[Row]] = {place: [], "retrying": []}
    for row in rows:
        by_state["retrying" if row["state"] == "retrying" else place].append(row)
    return {
        state: Group(
            state=state,
            rows=tuple(found[:limit]),
            total=None if left_out.get("reading") else len(found),
            **left_out,
        )
        for state, found in by_state.items()
    }


def _row(row: Row, at: str | None) -> Row:
    """Return a job as shown by a search. `at` is when it failed, ended or started, or else was enqueued."""
    error = row["error"]
    return {
        **{name: row[name] for name in ("id", "job", "queue", "state", "preview", "worker", "tenant")},
        "error": None if error is None else {"class": error["class"], "message": error["message"]},
        "at": at,
        "run_at": None,
    }


def _fitting(query: JobFilter, rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if query.matches(facts_of_row(row))]


# -- suggestions while the user types


def _offered(site: Site) -> dict[str, list[str]]:
    """Return the suggestions for a search: names of queues, jobs and tenants, at most ten seconds old."""
    return site.component("suggestions", lambda: Refreshing(lambda: _known(site), fresh=tuning.RECENT)).get()


def _known(site: Site) -> dict[str, list[str]]:
    """Return names that other pages have read, without asking the broker."""
    live = site.existing(LiveState)
    snapshot = live.sampler.last if live else None
    queues = [row["name"] for row in snapshot.queues if not is_failed(row["name"])] if snapshot else []
    failed = site.existing(FailedJobs)
    ready = failed is not None and failed.view.state.ready
    tenants = failed.view.index.names("tenant") if failed is not None and ready else ()
    return {
        "queue": queues[: tuning.ROWS],
        "job": sorted(job_names(site))[: tuning.ROWS],
        "tenant": sorted(tenants)[: tuning.SOME],
    }


def job_names(site: Site) -> set[str]:
    """Return the names of jobs that other pages have read, and of those whose code is imported here."""
    jobs = set(registry.names())
    failed = site.existing(FailedJobs)
    if failed is not None and failed.view.state.ready:
        jobs |= set(failed.view.index.names("job"))
    views = site.existing(JournalViews)
    if views is not None and views.ready:
        jobs |= set(views.index.names("job"))
    return jobs


def known_conditions(site: Site) -> list[str]:
    """Return a condition for each known queue, job and tenant, and for each state."""
    names = _offered(site)
    chips = [str(Chip(chip, name)) for chip in ("queue", "job", "tenant") for name in names[chip]]
    return [*chips, *(f"state:{state}" for state in STATES)]


def suggestions(site: Site) -> list[str]:
    """Return the conditions suggested while the user types: the known ones, then examples of others."""
    examples = [str(Chip(chip, CHIPS[chip][0])) for chip in ("error", "worker", "until", "since")]
    return [*known_conditions(site), *examples]


class Names(Struct, frozen=True):
    """Queues, workers and jobs whose names contain the words of a search."""

    queues: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()


def names(site: Site, query: JobFilter) -> Names:
    """Return the names that contain the words of a query without conditions, exact matches first. Raises
    BrokerError.
    """
    if query.text is None or query != JobFilter(text=query.text):
        return Names()
    wanted = query.text.casefold()

    def chosen(known: Iterable[str]) -> tuple[str, ...]:
        found = [name for name in known if wanted in name.casefold()]
        return tuple(sorted(found, key=lambda name: (name.casefold() != wanted, name))[: tuning.SOME])

    snapshot = live_state(site).snapshot(5.0)
    offered = _offered(site)
    return Names(
        chosen(row["name"] for row in snapshot.queues if not is_failed(row["name"])),
        chosen(row["id"] for row in snapshot.workers),
        chosen(offered["job"]),
    )
