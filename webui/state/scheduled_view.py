"""Scheduled and recurring jobs as displayed: read from the broker and cached.

On RabbitMQ the first listing makes the leader read all scheduled jobs, so a listing is cached for ten times as long as
reading it took. Commands on scheduled jobs in this process empty the cache. A command continues even if its request no
longer waits for it.
"""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar

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
from palermo.webui import tuning
from palermo.webui.site import Refused, Site
from palermo.webui.state.refreshing import Refreshing, RefreshingByKey, start_thread

#: The command that runs jobs now if they are waiting for a retry.
RETRY = "retry"


T = TypeVar("T")


class StillReading(BrokerUnavailable):
    """A listing takes longer than the caller waits, and continues in the background."""


class ListingKey(NamedTuple):
    """The key of a cached listing: a page of the chosen jobs."""

    chosen: JobFilter
    #: Only jobs with these ids; None for all.
    ids: frozenset[str] | None = None
    offset: int = 0
    limit: int = 0


class ScheduledView:
    """A site's scheduled and recurring jobs. Thread-safe."""

    def __init__(self, reading: Inspector, acting: Inspector, *, timeout: float) -> None:
        """`timeout` is how long a caller waits for a listing by default, in seconds."""
        self._reading_inspector = reading
        self._acting_inspector = acting
        self._timeout = timeout
        self._lock = threading.Lock()
        shown: dict[str, Any] = {"fresh": tuning.BRIEF, "slow": tuning.SLOW, "longest": tuning.STALE}
        self._listings: RefreshingByKey[Listing[JobRow]] = RefreshingByKey(**shown)
        self._recurring = Refreshing(self._read_recurring, **shown)
        self._due: OrderedDict[str, float] = OrderedDict()
        self._running = threading.Semaphore(tuning.AT_ONCE)
        #: Listings run one at a time, because the leader serves only one, and without a leader this process takes over.
        self._read_lock = threading.Lock()

    def page(
        self,
        chosen: JobFilter,
        *,
        offset: int = 0,
        limit: int = 100,
        timeout: float | None = None,
        patience: float | None = None,
    ) -> Listing[JobRow]:
        """Return a page of the chosen jobs, soonest first, from the cache or the broker.

        Raises BrokerError, and Refused (422) if the page is too deep.
        """
        if offset + limit > tuning.MAX_JOBS:
            raise Refused(422, f"pages show only the first {tuning.MAX_JOBS:,} scheduled jobs.")
        waits = self._timeout if timeout is None else timeout
        return self._listing(ListingKey(chosen, None, offset, limit), waits, patience)

    def soon(self, chosen: JobFilter, *, offset: int = 0, limit: int = 100) -> Listing[JobRow]:
        """Like `page`, but if reading takes a while, return the listing of a few seconds ago or raise StillReading."""
        waits, patience = self._timeout * tuning.PATIENCE, self._timeout * tuning.GLANCE
        return self.page(chosen, offset=offset, limit=limit, timeout=waits, patience=patience)

    def progress(self) -> tuple[int, int] | None:
        """Return the number of jobs read for the running listing, and their total; None if unknown."""
        asked = start_thread(self._reading_inspector.scheduled.progress, "palermo-progress")
        try:
            return asked.result(tuning.BRIEF)
        except (TimeoutError, PalermoError):
            return None

    def count(self, state: str | None = None) -> int | None:
        """Return the number of scheduled jobs in a state, or in all; None if it isn't quickly available."""
        try:
            return self._listing(
                ListingKey(JobFilter(state=state)), tuning.BRIEF if state is None else tuning.GLANCE
            ).total
        except PalermoError:
            return None

    def find(self, id: str, *, everywhere: bool = True) -> JobRow | None:
        """Return the unmasked row of one scheduled job, or None. Raises BrokerError.

        Without `everywhere`, only the due time in its last listing is searched; otherwise RabbitMQ reads all scheduled
        jobs.
        """
        # first only the time at which it was due
        due = self._due_time([id])
        filters = [*([] if due.everything else [due]), *([EVERYTHING] if everywhere else [])]
        if not filters or not self._listing(ListingKey(EVERYTHING), self._timeout).total:
            return None
        for chosen in filters:
            if rows := self._listing(ListingKey(chosen, frozenset([id]), 0, 1), self._timeout).rows:
                return rows[0]
        return None

    def recurring(self) -> list[RecurringRow]:
        """Return the unmasked rows of all recurring jobs by name, from the cache or the broker. Raises BrokerError."""
        return _soon(self._recurring, self._timeout)

    def version(self, chosen: JobFilter, *, offset: int = 0) -> str:
        """Return a text that changes with a page of the chosen jobs or their number. Raises BrokerError."""
        page = self.page(chosen, offset=offset, limit=tuning.ROWS, timeout=tuning.BRIEF)
        return _digest([page.total, [[row["id"], row["run_at"]] for row in page.rows]])

    def recurring_version(self) -> str:
        """Return a text that changes with the recurring jobs. Raises BrokerError."""
        return _digest(_soon(self._recurring, tuning.BRIEF))

    def alter(
        self,
        action: str,
        which: Which,
        *,
        actor: Actor,
        at: datetime | float | None = None,
        later: float | None = None,
        retries: bool | None = None,
    ) -> list[AlteredRow]:
        """Cancel, run, move or give up on scheduled jobs; with `retries` only those waiting for a retry.

        Jobs are moved to the instant `at`, or each by `later` seconds. Returns the rows of palermo.inspector.scheduled.
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

        try:
            if isinstance(which, JobFilter) or later is not None:
                return do(which, within=within)
            ids = _ids(which)
            due = self._due_time(ids)
            rows = do(ids, within=replace(due, state=within.state))
            missing = [row["id"] for row in rows if row["state"] == GONE]
            if due.everything or not missing:
                return rows
            # Missing jobs may have been moved to another time since they were listed.
            return [row for row in rows if row["state"] != GONE] + do(missing, within=within)
        finally:
            self.clear()

    def clear(self) -> None:
        """Empty the cache."""
        self._listings.clear()
        self._recurring.clear()

    def _listing(self, key: ListingKey, timeout: float, patience: float | None = None) -> Listing[JobRow]:
        found = _soon(self._listings.of(key, lambda: self._read(key)), timeout, patience)
        self._store_due_times(found.rows)
        return found

    def _store_due_times(self, rows: Sequence[JobRow]) -> None:
        """Remember when these jobs are due, so that finding one again reads only that time."""
        with self._lock:
            for row in rows:
                if row["run_at"] is not None:
                    self._due[row["id"]] = parse_instant(row["run_at"])
                    self._due.move_to_end(row["id"])
            while len(self._due) > tuning.CACHED:
                self._due.popitem(last=False)

    def _due_time(self, ids: Collection[str]) -> JobFilter:
        """Return a filter for the time in which all these jobs are due; EVERYTHING if it isn't known for all."""
        with self._lock:
            known = [self._due[id] for id in ids if id in self._due]
        if not known or len(known) < len(ids):
            return EVERYTHING
        # Rows round instants to milliseconds.
        return JobFilter(due_from=min(known) - 1, due_until=max(known) + 1)

    def _read(self, key: ListingKey) -> Listing[JobRow]:
        if not self._running.acquire(blocking=False):
            raise BrokerUnavailable("too many users are reading scheduled jobs right now. Try again.")
        try:
            with self._read_lock:
                return self._reading_inspector.scheduled.list(
                    key.chosen, ids=key.ids, offset=key.offset, limit=key.limit
                )
        finally:
            self._running.release()

    def _read_recurring(self) -> list[RecurringRow]:
        with self._read_lock:
            return self._reading_inspector.recurring.list()


def _soon(value: Refreshing[T], timeout: float, patience: float | None = None) -> T:
    """Return the value, or the previous one if getting it takes longer than this. Raises StillReading if there is no
    previous one, and BrokerError.
    """
    try:
        return value.get(wait=timeout, patience=patience)
    except TimeoutError:
        raise StillReading(
            "the scheduled jobs are still being read, because the filter needs all of them. Try again in a few seconds."
        ) from None


def _ids(which: str | Iterable[str]) -> list[str]:
    return [which] if isinstance(which, str) else list(dict.fromkeys(which))


def _digest(shown: object) -> str:
    return hashlib.blake2b(json.dumps(shown).encode(), digest_size=8).hexdigest()


def scheduled_view(site: Site) -> ScheduledView:
    """Return a site's scheduled and recurring jobs, created on first use."""
    return site.component(ScheduledView, lambda: _made(site))


def _made(site: Site) -> ScheduledView:
    reading = Inspector(site.client, max_shown_bytes=MAX_SHOWN, within=tuning.MINUTE)
    return ScheduledView(reading, Inspector(site.client), timeout=site.client.settings.publish_timeout)
