"""Limits and rates: how many runs of a job are active at once, and how often it runs.

Pure: the state, the request and the time are arguments. A single place decides about each request: on RabbitMQ the
leader, on SQLite and Redis a transaction. docs/guides/limits.md has the guarantees for users.

A job that must not run yet is postponed, so that it occupies no slot. A job over its limit waits in line until it is
offered a permit. A job over its rate gets a reserved run, and returns to its queue shortly before it.
"""

import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from palermo.core.bounds import MAX_LIMIT
from palermo.core.instants import Instants
from palermo.core.message import CLOCK_DIFFERENCE, MAX_SECONDS, Message
from palermo.errors import OptionInvalid

#: The headers of a limited message.
LIMIT, LIMIT_KEY, RATE = "limit", "limit-key", "rate"

#: The header of a job with a reservation by its rate: the number of the reserved run.
RESERVATION = "rate-turn"

#: Maximum length of a user's key.
MAX_KEY_BYTES = 255

#: Makes runs 1 % less frequent than the rate. Otherwise some seconds would have too many runs, since the time from the
#: grant to the job's first line varies.
SLACK = 1.01

#: A slot waits for a reserved run that is at most this many seconds away, since postponing the job takes as long.
SLOT_WAIT = 0.1

#: A job returns to its queue this many seconds before its reserved run, or half a gap if that is shorter. So a slot
#: never waits for two reserved runs.
EARLY = 0.02

#: Gap in seconds below which the decider doesn't wait for a job that is late for its reserved run.
LATE_RUN_GAP = 0.25

#: Seconds for which a job that waits for a permit is postponed. The first jobs get the minimum, so that a permit can be
#: offered to them; those further back get more.
MIN_POSTPONEMENT, MAX_POSTPONEMENT = 4.0, 60.0

#: A waiting job returns after a quarter of its expected wait, since only a job that is about to reach its queue can be
#: offered a permit.
WAIT_PART = 4

#: A job loses its place if it doesn't ask again within this many seconds after its offer, or after it was due to
#: return.
OFFER_TIMEOUT = 5.0

#: A free permit is kept for the job that it was offered to for this many seconds. That is enough unless the job's queue
#: is long, and then other jobs must not wait for it.
OFFER_HELD_FOR = 0.02

#: A permit ends if the worker doesn't report the run within this many seconds after the grant.
GRACE = 2.0

_UNITS = {
    **dict.fromkeys(("s", "sec", "second"), 1.0),
    **dict.fromkeys(("m", "min", "minute"), 60.0),
    **dict.fromkeys(("h", "hour"), 3_600.0),
    **dict.fromkeys(("d", "day"), 86_400.0),
}
#: Compiled on first use; most workers never need it.
_WRITTEN = r"\s*(?P<count>[0-9]{1,9})\s*/\s*(?P<every>[0-9]{0,6})\s*(?P<unit>[a-z]+)\s*\Z"


class Rate(Struct, frozen=True):
    """A rate: `count` runs per `period` seconds, evenly spaced."""

    count: Annotated[int, Meta(ge=1)]
    period: Annotated[float, Meta(gt=0)]

    @classmethod
    def parse(cls, text: object) -> "Rate":
        """Parse a rate such as `100/min`, `50/s` or `1/15min`. Raises OptionInvalid."""
        found = re.match(_WRITTEN, text) if isinstance(text, str) else None
        unit = _UNITS.get(found["unit"]) if found else None
        every = int(found["every"] or 1) if found else 0
        if found is None or unit is None or not every or not 1 <= int(found["count"]) <= MAX_LIMIT:
            raise OptionInvalid(f"rate={text!r} is invalid; write 50/s, 100/min, 1000/h or 1/15min.")
        return cls(int(found["count"]), every * unit)

    @property
    def gap(self) -> float:
        """Seconds between two runs."""
        return self.period / self.count * SLACK

    @property
    def early(self) -> float:
        """A job returns to its queue this many seconds before its reserved run."""
        return min(EARLY, self.gap / 2)

    @property
    def leeway(self) -> float:
        """A run may be late by this many seconds without delaying the next one.

        It is half of the seconds that SLACK adds to a period, and at most half a gap.
        """
        return min(self.period * (SLACK - 1) / 2, self.gap / 2)


class LimitDemand(Struct, frozen=True, kw_only=True):
    """The limits that apply to a job."""

    key: str
    #: Maximum number of concurrent runs with this key; None for no limit.
    limit: int | None = None
    rate: Rate | None = None
    #: The rate as the user wrote it.
    written: str = ""
    #: Whether this run was reserved for the job.
    reserved: bool = False


def check_key(key: object) -> str:
    """Return the key if it is a valid limit_key. Raises OptionInvalid."""
    try:
        if isinstance(key, str) and 1 <= len(key.encode()) <= MAX_KEY_BYTES:
            return key
    except UnicodeEncodeError:
        pass
    raise OptionInvalid(
        f"limit_key={str(key)[:40]!r} ({type(key).__name__}) is not a key; give text of 1 to {MAX_KEY_BYTES} bytes of"
        " UTF-8, or a function of the job's arguments that does."
    )


def has_reservation(message: Message) -> bool:
    """Whether the message has a reserved run."""
    return message.extra.get(RESERVATION) == message.attempt


def demand_of(message: Message) -> LimitDemand | None:
    """The demand in a message's headers; None if it is not limited, or its headers are invalid."""
    extra = message.extra
    if LIMIT not in extra and RATE not in extra:
        return None
    limit, written, key = extra.get(LIMIT), extra.get(RATE), extra.get(LIMIT_KEY)
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_LIMIT:
        limit = None
    try:
        rate = None if written is None else Rate.parse(written)
    except OptionInvalid:
        rate = None
    if limit is None and rate is None:
        return None
    return LimitDemand(
        key=key if isinstance(key, str) and key else message.job,
        limit=limit,
        rate=rate,
        written=str(written) if rate is not None else "",
        reserved=has_reservation(message),
    )


class RunNow(Struct, frozen=True, tag=True):
    """Run the job after `wait` seconds, which a slot can spend waiting."""

    wait: float = 0.0


class RunLater(Struct, frozen=True, tag=True):
    """Postpone the job until the instant `at`, in Unix seconds."""

    at: float
    #: Whether a run is reserved for it then; otherwise the job only asks again.
    reserved: bool = False


def limit_headers(job: str, limit: int | None, key: str, rate: str | None) -> dict[str, Any]:
    """The headers of a job with these options; none if it is not limited. Each job has its own keys.

    Raises OptionInvalid for a key without a limit.
    """
    if limit is None and rate is None:
        if key:
            raise OptionInvalid("limit_key has no effect without limit= or rate=.")
        return {}
    headers: dict[str, Any] = {LIMIT_KEY: f"{job}:{key}"} if key else {}
    if limit is not None:
        headers[LIMIT] = limit
    if rate is not None:
        headers[RATE] = rate
    return headers


def postponed(message: Message, decision: RunLater) -> Message:
    """The message as it is stored until it may run."""
    extra = {name: value for name, value in message.extra.items() if name != RESERVATION}
    if decision.reserved:
        extra[RESERVATION] = message.attempt
    return replace(message, run_at=min(decision.at, MAX_SECONDS - 1), extra=extra)


class RateState(Struct, frozen=True, kw_only=True):
    """The state of a rate, in Unix seconds."""

    #: The instant before which no job may run.
    next: float = 0.0
    #: The first instant without a reservation.
    free: float = 0.0
    #: The same for jobs that missed their reservation, or for which there was no room at it.
    again: float = 0.0

    def request(self, rate: Rate, now: float, *, reserved: bool) -> "tuple[RateState, RunNow | RunLater]":
        """The new state, and the answer for a job that is about to run; `reserved` is whether it has a reservation.

        Runs are a gap apart, with or without reservations, which only keep waiting jobs from asking repeatedly. A run
        that is late by at most the leeway doesn't delay the next one, so any period may contain one extra run.
        """
        if self.next > now + rate.gap + SLOT_WAIT + CLOCK_DIFFERENCE:
            return RateState().request(rate, now, reserved=reserved)
        start = max(now, self.next)
        overdue = now - self.next >= max(0.0, rate.gap - LATE_RUN_GAP)
        if not reserved and not overdue and max(self.free, self.next) > now + SLOT_WAIT:
            at = max(self.free, self.next)
            return replace(self, free=at + rate.gap), RunLater(at - rate.early, reserved=True)
        if start > now + SLOT_WAIT:
            at = max(self.again, start)
            return replace(self, again=at + rate.gap), RunLater(at - rate.early, reserved=True)
        after = max(self.next, now - rate.leeway) + rate.gap
        return replace(self, next=after, free=max(self.free, after)), RunNow(start - now)

    def turns(self, written: str, now: float) -> int:
        """Number of reserved runs from now on. `written` is the rate; raises OptionInvalid for an invalid one."""
        return int(max(0.0, self.free - max(now, self.next)) / Rate.parse(written).gap) if written else 0

    def is_over(self, written: str, now: float) -> bool:
        """Whether a new state would give the same answers, so that this one can be deleted. `written` is the rate."""
        try:
            leeway = Rate.parse(written).leeway if written else 0.0
        except OptionInvalid:
            leeway = 0.0  # written by a later version
        return max(self.next + leeway, self.free, self.again) <= now


PermitHolder = tuple[str, str]


class _KeyState(Struct):
    limit: int | None = None
    written: str = ""
    rate_state: RateState = RateState()
    #: Each worker and job id with a permit, and the time of the grant.
    running: dict[PermitHolder, float] = field(default_factory=dict)
    #: By job id, when it loses its place: jobs that were offered a permit, and jobs in line for one.
    offered: dict[str, float] = field(default_factory=dict)
    waiting_line: dict[str, float] = field(default_factory=dict)
    #: Moving average of recent runs' durations in seconds; 0 until the first one has ended.
    mean_run: float = 0.0

    def forget(self, now: float) -> None:
        for known in (self.offered, self.waiting_line):
            for id in [id for id, until in known.items() if until < now]:
                del known[id]

    @property
    def free(self) -> int:
        return 1 if self.limit is None else self.limit - len(self.running) - len(self.offered)

    def may_run(self, id: str, now: float) -> bool:
        """Whether this job may take a permit now. A free permit is briefly kept for the job that it was offered to."""
        kept = sum(until - OFFER_TIMEOUT + OFFER_HELD_FOR > now for other, until in self.offered.items() if other != id)
        return self.limit is None or len(self.running) + kept < self.limit

    def expected_run(self, now: float) -> float:
        """Expected duration of a run in seconds, estimated from completed and active runs."""
        return max(self.mean_run, now - min(self.running.values(), default=now))

    def is_idle(self, now: float) -> bool:
        return not self.running and not self.offered and not self.waiting_line and self.rate_state.free <= now


class LimitInfo(Struct, frozen=True, kw_only=True):
    """One limited key, as an entry of the list."""

    key: str
    #: Maximum number of concurrent runs; None for no limit.
    limit: int | None
    #: The rate as the user wrote it; "" for none.
    rate: str
    running: int
    #: Number of postponed jobs known to the decider.
    waiting: int


class PermitTable:
    """The state of all limited keys, in the decider's memory. A new decider asks the workers which jobs they run."""

    def __init__(self, since: float) -> None:
        """`since` is when this decider started. Jobs that started earlier got their permits from another decider."""
        self._since = since
        self._keys: dict[str, _KeyState] = {}
        #: Permits of jobs that are possibly not running: they asked this decider only because they might still run.
        self._unconfirmed: set[tuple[str, PermitHolder]] = set()
        #: Keys with jobs that wait or have been offered permits. Only these are checked when a run ends.
        self._in_demand: dict[str, None] = {}
        #: Keys with running jobs. Only these are compared with the workers' reports.
        self._with_runs: dict[str, None] = {}
        #: The instants at which keys may be deleted.
        self._idle = Instants()

    def request(self, demand: LimitDemand, holder: PermitHolder, now: float) -> RunNow | RunLater:
        """The answer to a worker that is about to run a job. Asking again about a permitted job changes nothing."""
        key = self._key(demand.key)
        key.limit, key.written = demand.limit, demand.written
        key.forget(now)
        id = holder[1]
        if (demand.key, holder) in self._unconfirmed:
            # The worker asks again, so it got no permit from the previous decider.
            self._unconfirmed.discard((demand.key, holder))
            key.running.pop(holder, None)
            if not key.running:
                self._with_runs.pop(demand.key, None)
        if demand.limit is not None and holder not in key.running and not key.may_run(id, now):
            self._in_demand[demand.key] = None
            return self._put_in_line(key, demand.limit, id, now)
        if demand.rate is not None and holder not in key.running:
            if not key.rate_state.next and not demand.reserved:
                # The reservation was made by the previous decider, a gap apart from its others.
                key.rate_state = RateState(next=self._since + demand.rate.gap)
            key.rate_state, decision = key.rate_state.request(demand.rate, now, reserved=demand.reserved)
            if isinstance(decision, RunLater):
                key.offered.pop(id, None)
                self._idle.put(demand.key, key.rate_state.free)
                return decision
            wait = decision.wait
        else:
            wait = 0.0
        self._note_run(demand.key, key, holder, now)
        key.offered.pop(id, None)
        key.waiting_line.pop(id, None)
        return RunNow(wait)

    def run_ended(self, name: str, holder: PermitHolder, now: float) -> None:
        """Record that a run has ended, whatever its result."""
        key = self._keys.get(name)
        since = None if key is None else key.running.pop(holder, None)
        if key is None:
            return
        self._unconfirmed.discard((name, holder))
        if since is not None:
            key.mean_run += (now - since - key.mean_run) / 4
        if not key.running:
            self._with_runs.pop(name, None)
            key.running = {}  # a cleared dict would keep its memory, 170 bytes, until the next run
        self._idle.put(name, key.rate_state.free)

    def sync_running(
        self,
        workers: Iterable[tuple[str, Iterable[tuple[str, str]]]],
        now: float,
        *,
        asked: Iterable[tuple[str, Iterable[tuple[str, str]]]] = (),
    ) -> None:
        """Apply the reports of all living workers: for each worker, the keys and ids of the limited jobs that it runs.

        `asked`, on the first call, has the jobs that still await an answer. The previous decider may have let them run.
        """
        reported = {worker: set(runs) for worker, runs in workers}
        for name in list(self._with_runs):
            key = self._key(name)
            for holder, since in list(key.running.items()):
                worker, id = holder
                if worker not in reported or ((name, id) not in reported[worker] and now - since > GRACE):
                    del key.running[holder]
                    self._unconfirmed.discard((name, holder))
                    self._idle.put(name, key.rate_state.free)
            if not key.running:
                del self._with_runs[name]
        for worker, runs in reported.items():
            for name, id in runs:
                self._note_run(name, self._key(name), (worker, id), now)
                self._unconfirmed.discard((name, (worker, id)))
        for worker, asks in asked:
            for name, id in asks:
                self._note_run(name, self._key(name), (worker, id), now)
                self._unconfirmed.add((name, (worker, id)))

    def offer(self, now: float, is_near: Callable[[str], bool]) -> list[str]:
        """Offer free permits to waiting jobs that can start soon (`is_near`). Returns the jobs' ids."""
        offered: list[str] = []
        for name in list(self._in_demand):
            key = self._keys[name]
            key.forget(now)
            for id in list(key.waiting_line) if key.limit is not None and key.free > 0 else ():
                if key.free <= 0:
                    break
                if is_near(id):
                    del key.waiting_line[id]
                    key.offered[id] = now + OFFER_TIMEOUT
                    offered.append(id)
            if not key.offered and not key.waiting_line:
                del self._in_demand[name]
                self._idle.put(name, key.rate_state.free)
        for name in self._idle.until(now):
            # A key in use is checked again when its last run ends.
            if self._keys[name].is_idle(now):
                del self._keys[name]
        return offered

    @property
    def has_waiting(self) -> bool:
        """Whether a job waits for a permit."""
        return any(self._keys[name].waiting_line for name in self._in_demand)

    def listing(self, now: float) -> list[LimitInfo]:
        """All keys that are not idle, by name."""
        return [
            LimitInfo(
                key=name,
                limit=key.limit,
                rate=key.written,
                running=len(key.running),
                waiting=len(key.waiting_line) + len(key.offered) + key.rate_state.turns(key.written, now),
            )
            for name, key in sorted(self._keys.items())
            if not key.is_idle(now)
        ]

    def _note_run(self, name: str, key: _KeyState, holder: PermitHolder, now: float) -> None:
        key.running.setdefault(holder, now)
        self._with_runs[name] = None

    def _key(self, name: str) -> _KeyState:
        return self._keys.setdefault(name, _KeyState())

    @staticmethod
    def _put_in_line(key: _KeyState, limit: int, id: str, now: float) -> RunLater:
        before = list(key.waiting_line).index(id) if id in key.waiting_line else len(key.waiting_line)
        # A job far back returns about when its turn comes. If all waiting jobs asked often, asking would be most of the
        # work.
        wait = min(MAX_POSTPONEMENT, max(MIN_POSTPONEMENT, before / limit * key.expected_run(now) / WAIT_PART))
        if key.offered.pop(id, None) is not None:
            # The job was late and another got its permit, so it is next.
            key.waiting_line = {id: now + wait + OFFER_TIMEOUT, **key.waiting_line}
        key.waiting_line[id] = now + wait + OFFER_TIMEOUT
        return RunLater(now + wait)
