"""How many of some jobs run at once, and how often: what a message asks for, and who gets it.

Pure: what is known, what is asked and the time go in. Whoever decides applies it, one at a time: on RabbitMQ the
session that keeps the time, on the embedded broker a transaction. docs/limits.md says what users may expect of it.

A job that may not run now is put aside until an instant, so that it takes no slot. Of those that wait for a permit the
first is called when one is free; those that wait for their turn by a rate come back at it.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import field, replace
from typing import Any

from palermo.core.message import MAX_SECONDS, Message
from palermo.core.values import dataclass
from palermo.errors import OptionInvalid

#: The headers by which a message says that it is limited.
LIMIT, LIMIT_KEY, RATE = "limit", "limit-key", "rate"

#: The header of one that was given a turn: the number of the run that it is for.
TURN = "rate-turn"

#: The largest limit, and the largest number of a rate.
MAX_LIMIT = 1_000_000

#: The longest key of a user's.
MAX_KEY_BYTES = 255

#: By how much a rate is kept below what was asked for: from the grant to the job's first line it takes now longer and
#: now shorter, which would put more into some second than the rate allows.
SLACK = 1.01

#: Seconds that a slot may wait for a turn which is near: putting the job aside takes about as long.
NEAR = 0.1

#: Seconds before its turn at which a job comes back, at most; half of a gap where that is less, so that of two turns
#: one is waited for in a slot.
EARLY = 0.02

#: Where turns follow each other faster, nobody is waited for who is late for one.
QUICK = 0.25

#: Seconds that a job which waits for a permit is put aside for: those that are next, so that they can be called, and
#: those that have others before them.
SOON, LATE = 4.0, 60.0

#: Seconds within which one that was called, or was to come back, must come, or it has lost its place.
PATIENCE = 5.0

#: Seconds from the grant after which a worker that lives must say that it runs the job.
GRACE = 2.0

_UNITS = {
    **dict.fromkeys(("s", "sec", "second"), 1.0),
    **dict.fromkeys(("m", "min", "minute"), 60.0),
    **dict.fromkeys(("h", "hour"), 3_600.0),
    **dict.fromkeys(("d", "day"), 86_400.0),
}
#: Compiled when first used, as most workers never do.
_WRITTEN = r"\s*(?P<count>[0-9]{1,9})\s*/\s*(?P<every>[0-9]{0,6})\s*(?P<unit>[a-z]+)\s*\Z"


@dataclass(frozen=True, slots=True)
class Rate:
    """So many runs in so many seconds, evenly."""

    count: int
    period: float

    @classmethod
    def parse(cls, text: object) -> "Rate":
        """The rate written as `100/min`, `50/s` or `1/15min`. Raises OptionInvalid."""
        found = re.match(_WRITTEN, text) if isinstance(text, str) else None
        unit = _UNITS.get(found["unit"]) if found else None
        if found is None or unit is None or not 1 <= int(found["count"]) <= MAX_LIMIT or found["every"] == "0":
            raise OptionInvalid(f"rate={text!r} means nothing; write 50/s, 100/min, 1000/h or 1/15min.")
        return cls(int(found["count"]), int(found["every"] or 1) * unit)

    @property
    def gap(self) -> float:
        """Seconds between two runs."""
        return self.period / self.count * SLACK

    @property
    def early(self) -> float:
        """Seconds before its turn at which a job comes back."""
        return min(EARLY, self.gap / 2)

    @property
    def leeway(self) -> float:
        """Seconds by which a run may be late and the next one not: half of those by which a period is too long."""
        return min(self.period * (SLACK - 1) / 2, self.gap / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a job needs before it may run."""

    key: str
    #: How many with this key may run at once; None for any number.
    limit: int | None = None
    rate: Rate | None = None
    #: The rate as it was written.
    written: str = ""
    #: Whether it was given this turn.
    turn: bool = False


def check_key(key: object) -> str:
    """The key, if a limit may be kept for it. Raises OptionInvalid."""
    if not isinstance(key, str) or not key or len(key.encode(errors="replace")) > MAX_KEY_BYTES:
        raise OptionInvalid(
            f"limit_key={str(key)[:40]!r} ({type(key).__name__}) is no key; give text of 1 to {MAX_KEY_BYTES} bytes,"
            " or a function of the job's arguments that does."
        )
    return key


def has_turn(message: Message) -> bool:
    """Whether it was given a turn for the run that it waits for."""
    return message.extra.get(TURN) == message.attempt


def demand_of(message: Message) -> Demand | None:
    """What a message asks for; None if it is not limited, or says so in a way that means nothing."""
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
    return Demand(
        key=key if isinstance(key, str) and key else message.job,
        limit=limit,
        rate=rate,
        written=str(written) if rate is not None else "",
        turn=has_turn(message),
    )


@dataclass(frozen=True, slots=True)
class Go:
    """Run it, in so many seconds, which are few."""

    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class Aside:
    """Put it aside until then."""

    at: float
    #: Whether that is its turn, and not only when it is to ask again.
    turn: bool = False


def asking(job: str, limit: int | None, key: str, rate: str | None) -> dict[str, Any]:
    """The headers of a job with these options; none if it is not limited. A key is the job's own.

    Raises OptionInvalid for a key without a limit.
    """
    if limit is None and rate is None:
        if key:
            raise OptionInvalid("limit_key says nothing without limit= or rate=.")
        return {}
    headers: dict[str, Any] = {LIMIT_KEY: f"{job}:{key}"} if key else {}
    if limit is not None:
        headers[LIMIT] = limit
    if rate is not None:
        headers[RATE] = rate
    return headers


def put_aside(message: Message, verdict: Aside) -> Message:
    """The message as it waits."""
    extra = {name: value for name, value in message.extra.items() if name != TURN}
    if verdict.turn:
        extra[TURN] = message.attempt
    return replace(message, run_at=min(verdict.at, MAX_SECONDS - 1), extra=extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What is known of a rate: all in Unix seconds."""

    #: Before which nothing may run.
    next: float = 0.0
    #: The first turn that was not given to anyone.
    free: float = 0.0
    #: The same for those that came too late, or too many at once, for the turn that they had.
    again: float = 0.0

    def ask(self, rate: Rate, now: float, *, turn: bool) -> "tuple[Pace, Go | Aside]":
        """One wants to run; `turn` says that it was told to come about now.

        Runs are a gap apart whoever comes when: turns only spare those that wait from asking all the time. One that is
        late by no more than the leeway does not make the next one late, so that the rate is kept, and any period
        has one run too many at most.
        """
        start = max(now, self.next)
        overdue = now - self.next >= max(0.0, rate.gap - QUICK)
        if not turn and not overdue and max(self.free, self.next) > now + NEAR:
            at = max(self.free, self.next)
            return replace(self, free=at + rate.gap), Aside(at - rate.early, turn=True)
        if start > now + NEAR:
            at = max(self.again, start)
            return replace(self, again=at + rate.gap), Aside(at - rate.early, turn=True)
        after = max(self.next, now - rate.leeway) + rate.gap
        return replace(self, next=after, free=max(self.free, after)), Go(start - now)


Holder = tuple[str, str]


@dataclass(slots=True)
class _Key:
    limit: int | None = None
    written: str = ""
    pace: Pace = Pace()
    #: Who runs one, a worker and a job's id, and since when it may.
    running: dict[Holder, float] = field(default_factory=dict)
    #: Those of them of which it is not known whether they run one, or only asked another who decided before.
    doubtful: set[Holder] = field(default_factory=set)
    #: Ids that were called, and ids that wait, the first first, with the instants at which they have lost their places.
    called: dict[str, float] = field(default_factory=dict)
    line: dict[str, float] = field(default_factory=dict)
    #: Seconds that runs have taken lately.
    took: float = 1.0

    def forget(self, now: float) -> None:
        for known in (self.called, self.line):
            for id in [id for id, until in known.items() if until < now]:
                del known[id]

    @property
    def free(self) -> int:
        return 1 if self.limit is None else self.limit - len(self.running) - len(self.called)

    def is_idle(self, now: float) -> bool:
        return not self.running and not self.called and not self.line and self.pace.free <= now


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitInfo:
    """One limited key, as a listing shows it."""

    key: str
    #: How many may run at once; None for any number.
    limit: int | None
    #: As it was written; "" for none.
    rate: str
    running: int
    #: Those that were put aside, as far as it is known.
    waiting: int


class Permits:
    """All keys, as the one who decides has them in memory; what is lost with it is asked of the workers."""

    def __init__(self, since: float) -> None:
        """`since` is when it began to decide: another may have let something run until then."""
        self._since = since
        self._keys: dict[str, _Key] = {}

    def ask(self, demand: Demand, holder: Holder, now: float) -> Go | Aside:
        """A worker wants to run a job; asked again for one that it may run it answers the same."""
        key = self._key(demand.key)
        key.limit, key.written = demand.limit, demand.written
        key.forget(now)
        id = holder[1]
        if holder in key.doubtful:
            # It asks again, so it was given nothing.
            key.doubtful.discard(holder)
            key.running.pop(holder, None)
        if demand.limit is not None and holder not in key.running and key.free + (id in key.called) <= 0:
            return self._line_up(key, demand.limit, id, now)
        if demand.rate is not None and holder not in key.running:
            if not key.pace.next and not demand.turn:
                # One that has its turn already got it from whoever decided before, a gap from all others.
                key.pace = Pace(next=self._since + demand.rate.gap)
            key.pace, verdict = key.pace.ask(demand.rate, now, turn=demand.turn)
            if isinstance(verdict, Aside):
                key.called.pop(id, None)
                return verdict
            wait = verdict.wait
        else:
            wait = 0.0
        key.running.setdefault(holder, now)
        key.called.pop(id, None)
        key.line.pop(id, None)
        return Go(wait)

    def ended(self, name: str, holder: Holder, now: float) -> None:
        """A run has ended, well or not."""
        key = self._keys.get(name)
        since = None if key is None else key.running.pop(holder, None)
        if key is not None:
            key.doubtful.discard(holder)
        if key is not None and since is not None:
            key.took += (now - since - key.took) / 4

    def learn(
        self,
        workers: Iterable[tuple[str, Iterable[tuple[str, str]]]],
        now: float,
        *,
        asked: Iterable[tuple[str, Iterable[tuple[str, str]]]] = (),
    ) -> None:
        """What all workers that live say they run: each its id, and keys with ids of jobs.

        `asked`, the first time, is what they wait to be told: whoever decided before may have let it run.
        """
        told = {worker: set(runs) for worker, runs in workers}
        for name, key in self._keys.items():
            for holder, since in list(key.running.items()):
                worker, id = holder
                if worker not in told or ((name, id) not in told[worker] and now - since > GRACE):
                    del key.running[holder]
                    key.doubtful.discard(holder)
        for worker, runs in told.items():
            for name, id in runs:
                key = self._key(name)
                key.running.setdefault((worker, id), now)
                key.doubtful.discard((worker, id))
        for worker, asks in asked:
            for name, id in asks:
                self._key(name).running.setdefault((worker, id), now)
                self._key(name).doubtful.add((worker, id))

    def call(self, now: float, is_near: Callable[[str], bool]) -> list[str]:
        """Those to be called now, since there are permits for them: ids, of jobs that are at hand."""
        called: list[str] = []
        for name, key in list(self._keys.items()):
            key.forget(now)
            if key.is_idle(now):
                del self._keys[name]
            for id in list(key.line) if key.limit is not None and key.free > 0 else ():
                if key.free <= 0:
                    break
                if is_near(id):
                    del key.line[id]
                    key.called[id] = now + PATIENCE
                    called.append(id)
        return called

    @property
    def contended(self) -> bool:
        """Whether anyone waits for a permit."""
        return any(key.line for key in self._keys.values())

    def known(self, now: float) -> list[LimitInfo]:
        """All keys of which something is known, by name."""
        return [
            LimitInfo(
                key=name,
                limit=key.limit,
                rate=key.written,
                running=len(key.running),
                waiting=len(key.line) + len(key.called) + _turns(key, now),
            )
            for name, key in sorted(self._keys.items())
            if not key.is_idle(now)
        ]

    def _key(self, name: str) -> _Key:
        return self._keys.setdefault(name, _Key())

    @staticmethod
    def _line_up(key: _Key, limit: int, id: str, now: float) -> Aside:
        before = list(key.line).index(id) if id in key.line else len(key.line)
        # What is far back comes back about when it is next: asked for at every step, a long line would do nothing else.
        wait = min(LATE, max(SOON, before / limit * key.took))
        key.line[id] = now + wait + PATIENCE
        return Aside(now + wait)


def _turns(key: _Key, now: float) -> int:
    """How many turns by its rate are given and still to come."""
    if not key.written:
        return 0
    return max(0, math.floor((key.pace.free - max(now, key.pace.next)) / Rate.parse(key.written).gap))
