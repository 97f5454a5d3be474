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
STEP = 0.25

#: Seconds for which a session that has a duty leaves another one, whose leader has died, to sessions that have none.
LEFT_TO_OTHERS = 1.85


class Candidate:
    """What one session has seen of the duties."""

    def __init__(self) -> None:
        #: When it has first seen each vacant duty vacant, and the duties that somebody has had.
        self._vacant: dict[Duty, float] = {}
        self._left: set[Duty] = set()

    def look(self, vacant: Collection[Duty], mine: Collection[Duty], now: float) -> list[Duty]:
        """The duties to try to take now, the first first, until one is taken.

        `vacant` are those that nobody has, and `mine` those that this session has; `now` is on any clock.
        """
        self._left |= set(Duty).difference(vacant)
        self._vacant = {duty: self._vacant.get(duty, now) for duty in Duty if duty in vacant}
        return [duty for duty, since in self._vacant.items() if now >= since + self._wait(duty, len(mine))]

    def _wait(self, duty: Duty, count: int) -> float:
        return count * STEP + (LEFT_TO_OTHERS if count and duty in self._left else 0.0)
