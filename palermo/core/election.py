"""The leader's duties, and which of them a session may take that nobody has.

One session at a time has a duty. A lock on the broker sees to that; here is only who tries to take it, and when. A duty
is never handed over while its session lives. A session that has none tries at once, and one that has some waits: so the
sessions share the duties, and one that is alone has all of them.
"""

from collections.abc import Collection
from enum import StrEnum


class Duty(StrEnum):
    """What one session does for all others. The session that has a duty is the leader in it."""

    #: Scheduled and recurring jobs, limits and rates.
    TIME = "time"
    #: The keys of unique jobs.
    KEYS = "keys"
    #: The turns of tenants.
    TENANTS = "tenants"


#: Seconds between two looks which duties are vacant, at least and at most: of a session that has none, and of one that
#: has some. At most three sessions have some.
LOOK_EVERY, LOOK_AGAIN = (1.0, 2.0), (0.2, 0.25)

#: Seconds by which a session waits longer for each duty that it has.
STEP = 0.2

#: Seconds after the last sign of a duty's leader for which a session that has a duty leaves that one to those that have
#: none: for as long as these may take to look, and a little longer, since the leader may have lived on a little.
LEFT_TO_OTHERS = 2.1


class Candidate:
    """What one session has seen of the duties."""

    def __init__(self) -> None:
        #: By duty: when a look has found somebody who has it, the last time; and when one has found none, the first.
        self._led: dict[Duty, float] = {}
        self._vacant: dict[Duty, float] = {}

    def look(self, vacant: Collection[Duty], mine: Collection[Duty], now: float) -> list[Duty]:
        """The duties to try to take now, the first first, until one is taken.

        `vacant` are those that nobody has, and `mine` those that this session has; `now` is on any clock.
        """
        self._led |= dict.fromkeys(set(Duty).difference(vacant), now)
        self._vacant = {duty: self._vacant.get(duty, now) for duty in Duty if duty in vacant}
        return [duty for duty in self._vacant if not mine or now >= self._free_from(duty) + STEP * len(mine)]

    def _free_from(self, duty: Duty) -> float:
        return self._led[duty] + LEFT_TO_OTHERS if duty in self._led else self._vacant[duty]
