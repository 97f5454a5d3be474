"""Scheduled and recurring jobs as the pages show them: read from the broker and cached.

On RabbitMQ the first listing makes the leader read all scheduled jobs. So a listing is cached for ten times as long as
reading it took. Commands on scheduled jobs from this
process empty the cache. A command goes on when the request that started it does not wait for its end.
"""

import hashlib
import json
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from palermo.client.actor import Actor
from palermo.contract.row_types import AlteredRow, JobRow, RecurringRow
from palermo.contract.rows import MAX_SHOWN, Listing
from palermo.contract.scheduled import CANCEL, GIVE_UP, MOVE, RUN
from palermo.core.times import parse_instant
from palermo.errors import BrokerUnavailable, PalermoError
from palermo.inspector.inspector import Inspector
from palermo.inspector.scheduled import GONE, Which
from palermo.views.filter import EVERYTHING, JobFilter
from palermo.webui.site import Refused, Site

#: A listing is cached for at least MIN_CACHED seconds, and for CACHE_FACTOR times as long as reading it took.
MIN_CACHED, CACHE_FACTOR = 0.5, 10.0

#: The most different listings in the cache, and the most that may be under way at a time.
MAX_CACHED, MAX_RUNNING = 16, 8

#: The most jobs whose due times are remembered.
MAX_DUE_TIMES = 10_000

#: Seconds that one listing may take before it is given up.
READ_TIMEOUT = 60.0

#: The most scheduled jobs that pages lead through, and the rows of a page by default.
MAX_DEPTH, PAGE_SIZE = 1_000_000, 50

#: Seconds that a page waits for a number that is not its subject.
_SHORT_TIMEOUT = 0.3

#: The same for each of several numbers.
_GLANCE = 0.05

#: The parts of the usual time for which a page waits: for its list, before it shows how far the reading is, and for a
#: newer list than the one before, unless that is as many seconds old.
_PATIENCE, _NEWER, _STALE = 0.1, 0.05, 30.0

#: The command that runs jobs at once if they wait for a retry, and no other jobs.
RETRY = "retry"

T = TypeVar("T")


class StillReading(BrokerUnavailable):
    """A listing takes longer than the caller waits. It goes on."""


class ListingKey(NamedTuple):
    """The key of a listing: a page of the chosen scheduled jobs, or all recurring jobs if `chosen` is None."""

    chosen: JobFilter | None
    #: Only jobs with these ids; None for all.
    ids: frozenset[str] | None = None
    offset: int = 0
    limit: int = 0


class CachedListing(Struct):
    """One listing, under way or finished."""

    listing: Future[Listing[Any]] = field(default_factory=Future)
    #: The listing before, for callers that do not wait for the new one, and when it had been read.
    previous: Listing[Any] | None = None
    previous_at: float = -math.inf
    started_at: float = 0.0
    ended_at: float | None = None

    def is_old(self, now: float) -> bool:
        """Whether it has to be read again."""
        if self.ended_at is None:
            return False
        return now - self.ended_at > max(MIN_CACHED, CACHE_FACTOR * (self.ended_at - self.started_at))


class ScheduledView:
    """The scheduled and recurring jobs of one site. Safe to share between threads."""

    def __init__(self, reading: Inspector, acting: Inspector, *, timeout: float) -> None:
        """`timeout` is how long a caller waits for a listing by default, in seconds."""
        self._reading_inspector = reading
        self._acting_inspector = acting
        self._timeout = timeout
        self._lock = threading.Lock()
        self._cache: OrderedDict[ListingKey, CachedListing] = OrderedDict()
        self._due: OrderedDict[str, float] = OrderedDict()
        self._running = 0
        #: Listings run one at a time: the leader serves only one at once, and without a leader this process becomes it.
        self._read_lock = threading.Lock()

    def page(
        self, chosen: JobFilter, *, offset: int = 0, limit: int = 100, timeout: float | None = None
    ) -> Listing[JobRow]:
        """A page of the chosen jobs, soonest first, from the cache or the broker.

        Raises BrokerError, and Refused (422) if the page is too deep.
        """
        if offset + limit > MAX_DEPTH:
            raise Refused(422, f"pages reach only {MAX_DEPTH:,} scheduled jobs.")
        waits = self._timeout if timeout is None else timeout
        return self._listing(ListingKey(chosen, None, offset, limit), waits)

    def soon(self, chosen: JobFilter, *, offset: int = 0, limit: int = 100) -> Listing[JobRow]:
        """`page` for people: the list of a few seconds ago, or StillReading, where reading it takes a while."""
        key = ListingKey(chosen, None, offset, limit)
        with self._lock:
            before = self._cache.get(key)
            known = before is not None and time.monotonic() - max(before.previous_at, before.ended_at or 0.0) < _STALE
        return self.page(chosen, offset=offset, limit=limit, timeout=self._timeout * (_NEWER if known else _PATIENCE))

    def progress(self) -> tuple[int, int] | None:
        """How many jobs have been read for the listing under way, and how many are read; None if that is not known."""
        asked = start_thread(self._reading_inspector.scheduled.progress, "palermo-progress")
        try:
            return asked.result(_SHORT_TIMEOUT)
        except (TimeoutError, PalermoError):
            return None

    def count(self, state: str | None = None) -> int | None:
        """The number of the scheduled jobs in a state, or in any; None if it cannot be had quickly."""
        try:
            return self._listing(ListingKey(JobFilter(state=state)), _SHORT_TIMEOUT if state is None else _GLANCE).total
        except PalermoError:
            return None

    def find(self, id: str, *, everywhere: bool = True) -> JobRow | None:
        """The unmasked row of one scheduled job; None if it is not there. Raises BrokerError.

        Without `everywhere` only where it was listed before: on RabbitMQ else all scheduled jobs are read.
        """
        # First only the time at which it was due.
        there = self._due_time([id])
        looks = [*([] if there.everything else [there]), *([EVERYTHING] if everywhere else [])]
        if not looks or not self._listing(ListingKey(EVERYTHING), self._timeout).total:
            return None
        for chosen in looks:
            rows: list[JobRow] = self._listing(ListingKey(chosen, frozenset([id]), 0, 1), self._timeout).rows
            if rows:
                return rows[0]
        return None

    def recurring(self) -> list[RecurringRow]:
        """The unmasked rows of all recurring jobs by name, from the cache or the broker. Raises BrokerError."""
        return self._listing(ListingKey(None), self._timeout).rows

    def version(self, chosen: JobFilter, *, offset: int = 0) -> str:
        """A text that changes when a page of the chosen jobs or their number changes. Raises BrokerError."""
        page = self.page(chosen, offset=offset, limit=PAGE_SIZE, timeout=_SHORT_TIMEOUT)
        return _digest([page.total, [[row["id"], row["run_at"]] for row in page.rows]])

    def recurring_version(self) -> str:
        """A text that changes when the recurring jobs change. Raises BrokerError."""
        return _digest(self._listing(ListingKey(None), _SHORT_TIMEOUT).rows)

    def alter(
        self,
        action: str,
        which: Which,
        *,
        actor: Actor,
        at: datetime | float | None = None,
        later: float | None = None,
        retries: bool | None = None,
    ) -> Future[list[AlteredRow]]:
        """Start to cancel, run, move or give up scheduled jobs; with `retries` only those that wait for a retry.

        Jobs are moved to the instant `at`, or each so many seconds `later` than it is due. The future gets the rows of
        palermo.inspector.scheduled.
        """
        acting = self._acting_inspector.on_behalf_of(actor).scheduled
        done_by: dict[str, Callable[..., list[AlteredRow]]] = {
            CANCEL: acting.cancel,
            RUN: acting.run_now,
            RETRY: acting.retry_now,
            GIVE_UP: acting.give_up,
            MOVE: partial(acting.reschedule, at=at, later=later),
        }
        do = done_by[action]
        within = JobFilter(state="retrying") if retries else EVERYTHING

        def act() -> list[AlteredRow]:
            try:
                if isinstance(which, JobFilter) or later is not None:
                    return do(which, within=within)
                ids = _ids(which)
                there = self._due_time(ids)
                rows = do(ids, within=replace(there, state=within.state))
                missing = [row["id"] for row in rows if row["state"] == GONE]
                if there.everything or not missing:
                    return rows
                # The missing jobs may have been moved to another time since they were listed.
                return [row for row in rows if row["state"] != GONE] + do(missing, within=within)
            finally:
                self.clear()

        return start_thread(act, f"palermo-{action.replace(' ', '-')}")

    def clear(self) -> None:
        """Empty the cache."""
        with self._lock:
            self._cache.clear()

    def _listing(self, key: ListingKey, timeout: float) -> Listing[Any]:
        with self._lock:
            cached = self._cache.get(key)
            if cached is None or cached.is_old(time.monotonic()):
                cached = self._cache[key] = self._read(key, cached)
            self._cache.move_to_end(key)
            while len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        try:
            found = cached.listing.result(timeout)
        except TimeoutError:
            if cached.previous is not None:
                return cached.previous
            raise StillReading(
                "the scheduled jobs are still being read: a filter has to read all of them. Ask again."
            ) from None
        if key.chosen is not None:
            self._store_due_times(found.rows)
        return found

    def _store_due_times(self, rows: Sequence[JobRow]) -> None:
        """Remember when these jobs are due, so that finding one again reads only that time."""
        with self._lock:
            for row in rows:
                if row["run_at"] is not None:
                    self._due[row["id"]] = parse_instant(row["run_at"])
                    self._due.move_to_end(row["id"])
            while len(self._due) > MAX_DUE_TIMES:
                self._due.popitem(last=False)

    def _due_time(self, ids: Collection[str]) -> JobFilter:
        """The time in which all of these jobs are due, as a filter; EVERYTHING if that is not known of all."""
        with self._lock:
            known = [self._due[id] for id in ids if id in self._due]
        if not known or len(known) < len(ids):
            return EVERYTHING
        # Rows round instants to milliseconds.
        return JobFilter(due_from=min(known) - 1, due_until=max(known) + 1)

    def _read(self, key: ListingKey, previous: CachedListing | None) -> CachedListing:
        if self._running >= MAX_RUNNING:
            raise BrokerUnavailable("too many users are reading scheduled jobs at the moment. Ask again.")
        self._running += 1
        cached = CachedListing(started_at=time.monotonic())
        if previous is not None and previous.listing.exception() is None:
            cached.previous, cached.previous_at = previous.listing.result(), previous.ended_at or -math.inf

        def read() -> Listing[Any]:
            try:
                with self._read_lock:
                    cached.started_at = time.monotonic()
                    if key.chosen is None:
                        rows = self._reading_inspector.recurring.list()
                        return Listing(rows, len(rows))
                    return self._reading_inspector.scheduled.list(
                        key.chosen, ids=key.ids, offset=key.offset, limit=key.limit
                    )
            finally:
                with self._lock:
                    self._running -= 1
                    cached.ended_at = time.monotonic()

        cached.listing = start_thread(read, "palermo-scheduled")
        return cached


def _ids(which: str | Iterable[str]) -> list[str]:
    return [which] if isinstance(which, str) else list(dict.fromkeys(which))


def _digest(shown: object) -> str:
    return hashlib.blake2b(json.dumps(shown).encode(), digest_size=8).hexdigest()


def start_thread(work: Callable[[], T], name: str) -> "Future[T]":
    """Do the work on a daemon thread. Returns its future."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def scheduled_view(site: Site) -> ScheduledView:
    """The scheduled and recurring jobs of a site; made by the first call and kept as long as the site."""
    return site.component(ScheduledView, lambda: _made(site))


def _made(site: Site) -> ScheduledView:
    reading = Inspector(site.client, max_shown_bytes=MAX_SHOWN, within=READ_TIMEOUT)
    return ScheduledView(reading, Inspector(site.client), timeout=site.client.settings.publish_timeout)
