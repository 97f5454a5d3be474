"""The same model where ends of runs lie in a log, and the leader hears of them later, or is killed before.

As on RabbitMQ: a worker stores an end, the leader hears of it afterwards, and does not write it again. The next
arbiter reads the states that were written, and then all ends, also those of which the one before had heard.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis.stateful import rule

from palermo.core.message import Message
from palermo.core.unique_keys import Key, Phase
from palermo.core.unique_rules import (
    EnqueueAnswer,
    EnqueueOutcome,
    KeyUpdate,
    RunOutcome,
    StartAnswer,
    StartReason,
    end,
)
from tests.core import test_unique_rules_kills as immediate
from tests.scale import scaled


@dataclass(frozen=True)
class Told:
    """An end as a worker wrote it."""

    id: str
    how: RunOutcome
    serial: int | None
    starts: int | None
    at: float


@dataclass
class Logged(immediate.World):
    """What is in the log, and what the leader has made of it in memory: the key."""

    written: Key = field(default_factory=lambda: Key(name=immediate.KEY))
    number: int = 0
    ends: list[Told] = field(default_factory=list)
    heard: int = 0

    def store(self, step: KeyUpdate) -> None:
        if step.key != self.key or step.jobs:
            self.number += 1
            self.written = step.key
        super().store(step)

    def enqueue(self, message: Message, way: str) -> EnqueueAnswer:
        answer = super().enqueue(message, way)
        if answer.outcome is EnqueueOutcome.DUPLICATE and answer.state == Phase.RUNNING:
            self.hear_all()
            answer = super().enqueue(message, way)
        return answer

    def start(self, found: immediate.Delivery, *, again: bool) -> StartAnswer:
        if again:
            self.hear_all()
        answer = super().start(found, again=again)
        if answer.why in (StartReason.COPY, StartReason.DUPLICATE):
            self.hear_all()
            answer = super().start(found, again=again)
        return answer

    def end(self, found: immediate.Delivery, how: RunOutcome) -> None:
        self.ends.append(Told(found.message.id, how, found.serial, found.starts, self.now))

    def hear(self, *, read_again: bool = False) -> None:
        """Of the next end."""
        told = self.ends[self.heard]
        self.heard += 1
        now = told.at if read_again else self.now
        step = end(self.key, told.id, told.how, serial=told.serial, starts=told.starts, now=now)
        if step.jobs:
            self.store(step)
        else:
            self.key = step.key

    def hear_all(self) -> None:
        while self.heard < len(self.ends):
            self.hear()

    settle = hear_all


class LaterKills(immediate.Kills):
    """The arbiter is killed as well."""

    def __init__(self) -> None:
        super().__init__()
        self.world: Logged = Logged()

    @rule()
    def hear(self) -> None:
        if self.world.heard < len(self.world.ends):
            self.world.hear()

    @rule()
    def kill_the_arbiter(self) -> None:
        world = self.world
        world.key, world.heard = world.written, 0
        if world.key.is_free:
            world.key = Key(name=immediate.KEY, serial=max(world.number, world.key.serial))
        for _ in list(world.ends):
            world.hear(read_again=True)

    @rule()
    def write_all_anew(self) -> None:
        world = self.world
        world.number += 1
        world.written = world.key
        del world.ends[: world.heard]
        world.heard = 0


TestLaterKills = LaterKills.TestCase
TestLaterKills.settings = settings(max_examples=scaled(50, 1_500), stateful_step_count=scaled(30, 40), deadline=None)
