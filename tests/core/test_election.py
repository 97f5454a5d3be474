"""Sessions that are started and killed at random share the duties, and no duty is without a session for long."""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from palermo.core.election import LEFT_TO_OTHERS, LOOK_AGAIN, LOOK_EVERY, STEP, Candidate, Duty

#: Seconds within which a duty has a session again, if one lives; those that it takes at most to take one; and those
#: between two looks at least.
LEASE, TAKING, SOON = 3.0, 0.1, 0.1


@dataclass(eq=False)
class Session:
    began: float
    candidate: Candidate = field(default_factory=Candidate)
    alive: bool = True


class World:
    """Sessions, and the locks of the broker: the first that comes has the lock, and a death frees it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.sessions: list[Session] = []
        self.owners: dict[Duty, Session] = {}
        #: Since when each duty has had no session; and all spans without one while some session lived.
        self.vacant_since = dict.fromkeys(Duty, 0.0)
        self.spans: list[float] = []
        #: How many duties each session had that took one, and the least that a session had that could have taken it.
        self.taken: list[tuple[int, int]] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), event))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = until

    def mine(self, session: Session) -> list[Duty]:
        return [duty for duty, owner in self.owners.items() if owner is session]

    def start(self) -> Session:
        if not self.sessions:
            self.vacant_since |= {duty: self.now for duty in Duty if duty not in self.owners}
        session = Session(self.now)
        self.sessions.append(session)
        self.look(session)
        return session

    def kill(self, session: Session) -> None:
        session.alive = False
        self.sessions.remove(session)
        for duty in self.mine(session):
            del self.owners[duty]
            self.vacant_since[duty] = self.now

    def look(self, session: Session) -> None:
        if not session.alive:
            return
        vacant = [duty for duty in Duty if duty not in self.owners]
        wanted = session.candidate.look(vacant, self.mine(session), self.now)
        self.at(self.random.uniform(0, TAKING) if wanted else 0, lambda: self.take(session, wanted))

    def take(self, session: Session, wanted: list[Duty]) -> None:
        if not session.alive:
            return
        count = len(self.mine(session))
        if wanted:
            duty, *rest = wanted
            if duty in self.owners:
                self.at(self.random.uniform(0, TAKING), lambda: self.take(session, rest))
                return
            # Who has looked since it is vacant, and has had time to take it.
            since = self.vacant_since[duty]
            others = [len(self.mine(one)) for one in self.sessions if one.began < since]
            if self.now - since > LOOK_EVERY[1] + TAKING:
                self.taken.append((count, min(others, default=count)))
            self.owners[duty] = session
            self.spans.append(self.now - since)
            count += 1
        look = self.random.uniform(*(LOOK_AGAIN if count else LOOK_EVERY))
        wait = session.candidate.wait(self.mine(session), self.now)
        self.at(max(SOON, min(look, wait)), lambda: self.look(session))


@pytest.mark.parametrize("seed", range(12))
def test_every_duty_has_a_session_within_the_lease(seed: int) -> None:
    world = World(seed)

    def churn() -> None:
        if world.sessions and world.random.random() < 0.6:
            # Most often one that leads: the others change little.
            leading = [one for one in world.sessions if world.mine(one)]
            world.kill(world.random.choice(leading or world.sessions))
        if not world.sessions or (len(world.sessions) < 6 and world.random.random() < 0.5):
            world.start()
        world.at(world.random.expovariate(1 / 6), churn)

    world.at(0, churn)
    for second in range(2_000):
        world.run(float(second))
        vacant = [duty for duty in Duty if duty not in world.owners]
        world.spans += [world.now - world.vacant_since[duty] for duty in vacant if world.sessions]

    assert len(world.spans) > 300
    assert max(world.spans) < LEASE
    assert all(count <= least for count, least in world.taken)


@pytest.mark.parametrize("seed", range(8))
def test_sessions_that_start_together_have_one_duty_each_and_keep_it(seed: int) -> None:
    world = World(seed)
    sessions = [world.start() for _ in range(3)]

    world.run(60)

    assert sorted(len(world.mine(session)) for session in sessions) == [1, 1, 1]

    late = world.start()
    world.run(120)

    assert world.mine(late) == []


def test_a_session_that_is_alone_has_all_duties_at_once() -> None:
    world = World(1)
    session = world.start()

    world.run(2 * STEP + 3 * TAKING)

    assert world.mine(session) == list(Duty)


@pytest.mark.parametrize("seed", range(8))
def test_a_duty_that_becomes_free_goes_to_a_session_that_has_none(seed: int) -> None:
    world = World(seed)
    first, second, third = (world.start() for _ in range(3))
    world.run(10)
    fourth = world.start()
    world.run(20)

    world.kill(first)
    world.run(20 + LEASE)

    assert [len(world.mine(one)) for one in (second, third, fourth)] == [1, 1, 1]


def test_who_has_a_duty_waits_until_all_that_have_none_have_looked() -> None:
    candidate, mine = Candidate(), [Duty.TIME]

    assert candidate.look([], mine, 1.0) == []
    assert candidate.look([Duty.KEYS], mine, 1.0 + LOOK_AGAIN[1]) == []
    assert candidate.wait(mine, 1.0 + LOOK_AGAIN[1]) == pytest.approx(LOOK_EVERY[1] + STEP)
    assert candidate.look([Duty.KEYS], mine, 1.0 + LOOK_AGAIN[1] + LOOK_EVERY[1]) == []
    assert candidate.look([Duty.KEYS], mine, 1.0 + LEFT_TO_OTHERS + STEP) == [Duty.KEYS]
    # Somebody else had it meanwhile, and died.
    assert candidate.look([], mine, 5.0) == []
    assert candidate.look([Duty.KEYS], mine, 6.0) == []
