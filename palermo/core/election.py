"""The leader's duties, and which of them a session may take that nobody has.

One session at a time has a duty. A lock on the broker sees to that; here is only who tries to take it, and when. A duty
is never handed over while its session lives. A session that has none tries at once, and one that has some waits: so the
sessions share the duties, and one that is alone has all of them.
"""

from collections.abc import Collection
from enum import StrEnum
from math import inf


class Duty(StrEnum):
    """What one session does for all others. The session that has a duty is the leader in it."""

    #: Scheduled and recurring jobs, limits and rates.
    TIME = "time"
    #: The keys of unique jobs.
    KEYS = "keys"
    #: The turns of tenants.
    TENANTS = "tenants"


#: Seconds between two looks which duties are vacant, at least and at most: of a session that has none, and of one that
#: has some.
LOOK_EVERY, LOOK_AGAIN = (1.0, 1.5), (0.6, 0.7)

#: Seconds by which a session waits longer for each duty that it has.
STEP = 0.2

#: Seconds after the last sign of a duty's leader for which a session that has a duty leaves that one to those that have
#: none: for as long as these may take to look, and a session that has some too, since the leader may have lived on.
LEFT_TO_OTHERS = LOOK_EVERY[1] + LOOK_AGAIN[1]


class Candidate:
    """What one session has seen of the duties. `mine` are those that it has; `now` is on any clock."""

    def __init__(self) -> None:
        #: By duty: when a look has found somebody who has it, the last time; and when one has found none, the first.
        self._led: dict[Duty, float] = {}
        self._vacant: dict[Duty, float] = {}

    def look(self, vacant: Collection[Duty], mine: Collection[Duty], now: float) -> list[Duty]:
        """The duties to try to take now, the first first, until one is taken. `vacant` are those that nobody has."""
        self._led |= dict.fromkeys(set(Duty).difference(vacant), now)
        self._vacant = {duty: self._vacant.get(duty, now) for duty in Duty if duty in vacant}
        return [duty for duty in self._vacant if now >= self._free_from(duty, len(mine))]

    def wait(self, mine: Collection[Duty], now: float) -> float:
        """Seconds until the first of the duties that were vacant at the last look is to be tried; infinite for none."""
        return min((self._free_from(duty, len(mine)) - now for duty in self._vacant if duty not in mine), default=inf)

    def _free_from(self, duty: Duty, count: int) -> float:
        if not count:
            return self._vacant[duty]
        since = self._led[duty] + LEFT_TO_OTHERS if duty in self._led else self._vacant[duty]
        return since + STEP * count
