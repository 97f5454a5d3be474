"""Scheduled and recurring jobs as the pages show them: looked at as often as the broker bears, kept in between.

On RabbitMQ a look reads the stretches of time that it touches, and with a filter all of them. So what was seen
is shown again for ten times as long as it took to see it. What is done here to scheduled jobs is
seen at once, and goes on when whoever asked for it does not wait for its end.
"""

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, TypeVar

from palermo.acting import Actor
from palermo.errors import BrokerUnavailable, PalermoError
from palermo.inspector import Inspector
from palermo.rows import Listing, Row
from palermo.scheduled import GONE, Which, listed
from palermo.timetable import CANCEL, GIVE_UP, RUN, Chosen
from palermo.webui.errors import Refused
from palermo.webui.formats import moment
from palermo.webui.looking import BoundedInspector
from palermo.webui.site import Site

#: What was seen is shown again for this long at least, in seconds, and for so many times what it took to see it.
KEPT, PACE = 0.5, 10.0

#: Different looks that are remembered, and that may be under way at a time.
LOOKS, AT_ONCE = 16, 8

#: Jobs of which it is remembered when they were due.
REMEMBERED = 10_000

#: Seconds that one look may take before it is given up.
LONGEST = 60.0

#: How deep pages lead, and how many rows the first has where nobody says otherwise.
MAX_DEPTH, FIRST = 1_000_000, 50

#: Seconds that a count for a page that is about something else is waited for.
_PASSING = 0.3

#: To run at once what waits to be tried again, and nothing else.
RETRY = "retry"

T = TypeVar("T")

_lock = threading.Lock()


class StillReading(BrokerUnavailable):
    """A look takes longer than anybody waits for it. It goes on."""


class Look(NamedTuple):
    """What is looked at: some of the scheduled jobs, or, where none are chosen, all recurring ones."""

    chosen: Chosen | None
    offset: int = 0
    limit: int = 0


@dataclass
class Glance:
    """One look, under way or over."""

    seen: Future[Listing] = field(default_factory=Future)
    #: What was seen before, for those who do not wait for the new.
    before: Listing | None = None
    began: float = 0.0
    ended: float | None = None

    def is_old(self, now: float) -> bool:
        return self.ended is not None and now - self.ended > max(KEPT, PACE * (self.ended - self.began))


class Ahead:
    """The scheduled and recurring jobs of one site. Safe to share between threads."""

    def __init__(
        self, looking: Inspector, acting: Inspector, *, patience: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`patience` is what a look is waited for, in seconds, where nobody says otherwise."""
        self._looking = looking
        self._acting = acting
        self._patience = patience
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[Look, Glance] = OrderedDict()
        self._due: OrderedDict[str, float] = OrderedDict()
        self._under_way = 0
        #: One look at a time: whoever keeps the time does no more at once, and where nobody does we take that place.
        self._turn = threading.Lock()

    def page(self, chosen: Chosen, *, offset: int = 0, limit: int = 100, patience: float | None = None) -> Listing:
        """Those of the chosen on a page, soonest first, as they are or were a moment ago.

        Raises BrokerError, and Refused too deep.
        """
        if offset + limit > MAX_DEPTH:
            raise Refused(422, f"pages lead no further than {MAX_DEPTH:,} scheduled jobs.")
        waits = self._patience if patience is None else patience
        return self._look(Look(chosen, offset, limit), waits)

    def count(self) -> int | None:
        """How many there are in all; None where that cannot be had in passing."""
        try:
            return self._look(Look(Chosen()), _PASSING).total
        except PalermoError:
            return None

    def find(self, id: str) -> Row | None:
        """The row of one scheduled job, with what is hidden; None if it is not there. Raises BrokerError."""
        if not self._look(Look(Chosen()), self._patience).total:
            return None
        near = self._near([id])
        for chosen in (near, Chosen(ids=frozenset([id]))) if near else (Chosen(ids=frozenset([id])),):
            if rows := self._look(Look(chosen, 0, 1), self._patience).rows:
                return rows[0]
        return None

    def recurring(self) -> list[Row]:
        """All recurring jobs by name, with what is hidden, as they are or were a moment ago. Raises BrokerError."""
        return self._look(Look(None), self._patience).rows

    def version(self, chosen: Chosen | None) -> str:
        """The same text while the soonest of the chosen, and their number, stay; or the recurring jobs, for None.

        Raises BrokerError.
        """
        if chosen is None:
            told: object = self._look(Look(None), _PASSING).rows
        else:
            page = self.page(chosen, limit=FIRST, patience=_PASSING)
            told = [page.total, [[row["id"], row["run_at"]] for row in page.rows]]
        return hashlib.blake2b(json.dumps(told).encode(), digest_size=8).hexdigest()

    def alter(
        self, action: str, which: Which, *, actor: Actor, at: datetime | float | None = None
    ) -> Future[list[Row]]:
        """Begin to cancel, run, move or give up scheduled jobs; the rows of palermo.scheduled once that is done."""
        acting = self._acting.on_behalf_of(actor)
        done_by: dict[str, Callable[[Which], list[Row]]] = {
            CANCEL: acting.cancel_scheduled,
            RUN: acting.run_now,
            RETRY: acting.retry_now,
            GIVE_UP: acting.give_up,
        }

        def act() -> list[Row]:
            do = done_by[action] if at is None else lambda which: acting.reschedule(which, at)
            try:
                if isinstance(which, Chosen):
                    return do(which)
                ids = [which] if isinstance(which, str) else list(dict.fromkeys(which))
                near = self._near(ids)
                if near is None:
                    return do(ids)
                rows = do(near)
                missing = [row["id"] for row in rows if row["state"] == GONE]
                # Somebody may have given them another time since they were seen.
                return [row for row in rows if row["state"] != GONE] + (do(missing) if missing else [])
            finally:
                self.forget()

        return _begin(act, f"palermo-{action.replace(' ', '-')}")

    def forget(self) -> None:
        """Look anew next time."""
        with self._lock:
            self._kept.clear()

    def _look(self, look: Look, patience: float) -> Listing:
        with self._lock:
            glance = self._kept.get(look)
            if glance is None or glance.is_old(self._clock()):
                glance = self._kept[look] = self._begin(look, glance)
            self._kept.move_to_end(look)
            while len(self._kept) > LOOKS:
                self._kept.popitem(last=False)
        try:
            found = glance.seen.result(patience)
        except TimeoutError:
            if glance.before is not None:
                return glance.before
            raise StillReading(
                "the scheduled jobs are still being read: with a filter all of them are looked at. Ask again."
            ) from None
        if look.chosen is not None:
            self._remember(found.rows)
        return found

    def _remember(self, rows: Sequence[Row]) -> None:
        """Keep when these are due: to find one again, only that time has to be looked at."""
        with self._lock:
            for row in rows:
                at = moment(row["run_at"] or "")
                if at is not None:
                    self._due[row["id"]] = at.timestamp()
                    self._due.move_to_end(row["id"])
            while len(self._due) > REMEMBERED:
                self._due.popitem(last=False)

    def _near(self, ids: Collection[str]) -> Chosen | None:
        """These ids at the time at which all of them were seen to be due; None if that is not known."""
        with self._lock:
            known = [self._due[id] for id in ids if id in self._due]
        if not known or len(known) < len(ids):
            return None
        # Instants are shown in thousandths.
        return Chosen(ids=frozenset(ids), due=(min(known) - 1, max(known) + 1))

    def _begin(self, look: Look, before: Glance | None) -> Glance:
        if self._under_way >= AT_ONCE:
            raise BrokerUnavailable("too many are looking at scheduled jobs at once here. Ask again.")
        self._under_way += 1
        glance = Glance(began=self._clock())
        if before is not None and before.seen.exception() is None:
            glance.before = before.seen.result()

        def see() -> Listing:
            try:
                with self._turn:
                    glance.began = self._clock()
                    if look.chosen is None:
                        rows = self._looking.recurring()
                        return Listing(rows, len(rows))
                    return listed(self._looking, look.chosen, offset=look.offset, limit=look.limit)
            finally:
                with self._lock:
                    self._under_way -= 1
                    glance.ended = self._clock()

        glance.seen = _begin(see, "palermo-ahead")
        return glance


def _begin(work: Callable[[], T], name: str) -> "Future[T]":
    """Do it on a thread that nobody has to wait for."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def ahead(site: Site) -> Ahead:
    """The scheduled jobs of a site; the same for as long as it lives."""
    with _lock:
        found = site.kept.get("ahead")
        if found is None:
            patience = site.client.settings.publish_timeout
            looking = BoundedInspector(site.client, longest=LONGEST)
            found = site.kept["ahead"] = Ahead(looking, Inspector(site.client), patience=patience)
        assert isinstance(found, Ahead)
        return found
