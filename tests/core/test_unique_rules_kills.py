"""The states of a key: by a model in which anyone may be killed at any instant.

And by the same model where ends of runs are in a log, as on RabbitMQ: a worker stores an end, the leader hears of it
later, or is killed before, and does not write it again. The next arbiter reads the states that were written, and then
all ends, also those of which the one before had heard.
"""

from dataclasses import dataclass, field, replace
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from palermo.core import unique_rules as rules
from palermo.core.message import Message
from palermo.core.unique_keys import Key, Phase
from palermo.core.unique_rules import EnqueueAnswer, EnqueueOutcome, KeyUpdate, RunOutcome, StartReason, end
from tests.core.test_unique_rules import KEY, asked, job, started
from tests.scale import scaled


@dataclass
class Delivery:
    """A message in the hands of a worker, and how far it has come."""

    message: Message
    again: bool
    run: str
    serial: int | None = None
    starts: int | None = None
    stage: str = "taken"  #: taken, running, told, published


@dataclass
class World:
    """All that is stored, and so survives any kill: the key, the queue, the failed jobs."""

    key: Key = field(default_factory=lambda: Key(name=KEY))
    queue: list[tuple[Message, bool]] = field(default_factory=list)
    held: list[Delivery] = field(default_factory=list)
    now: float = 0.0

    def store(self, step: KeyUpdate) -> None:
        self.key = step.key
        self.queue += [(message, False) for message in step.jobs]

    def enqueue(self, message: Message, way: str) -> EnqueueAnswer:
        step, answer = asked(self.key, message, self.now, on_duplicate=way)
        self.store(step)
        return answer

    def start(self, found: Delivery, *, again: bool) -> rules.StartAnswer:
        step, answer = started(self.key, found.message, self.now, run=found.run, again=again)
        self.store(step)
        return answer

    def end(self, found: Delivery, how: RunOutcome) -> None:
        """Stored before anything else is done about the job."""
        self.store(end(self.key, found.message.id, how, serial=found.serial, starts=found.starts, now=self.now))

    def settle(self) -> None:
        """Let the leader hear of all that is stored."""


class Kills(RuleBasedStateMachine):
    """Enqueuers, workers and people do what they do, step by step; workers are killed between any two steps."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.numbers = count()
        self.ran: dict[str, int] = {}
        self.wanted: set[str] = set()
        self.purged = False

    @rule(way=st.sampled_from([rules.RETURN, rules.REPLACE, rules.RERUN]), linger=st.sampled_from([0.0, 5.0]))
    def enqueue(self, way: str, linger: float) -> None:
        id = f"job {next(self.numbers)}"
        answer = self.world.enqueue(job(id, linger=linger), way)
        again, second = asked(self.world.key, job(id, linger=linger), self.world.now, on_duplicate=way)
        assert again.jobs == ()
        assert (second.outcome, second.id) == (answer.outcome, answer.id)
        if answer.outcome is EnqueueOutcome.STORED:
            assert not [one for one in self.world.held if one.stage == "running"]
        if answer.outcome in (EnqueueOutcome.STORED, EnqueueOutcome.NEXT):
            self.wanted.add(id)
        self.wanted.discard(answer.displaced)

    @precondition(lambda self: self.world.queue)
    @rule()
    def take(self) -> None:
        message, again = self.world.queue.pop(0)
        self.world.held.append(Delivery(message, again, f"run {next(self.numbers)}"))

    @precondition(lambda self: self.world.held)
    @rule(chosen=st.integers(0, 9), how=st.sampled_from([RunOutcome.DONE, RunOutcome.OVER, RunOutcome.AGAIN]))
    def work(self, chosen: int, how: RunOutcome) -> None:
        """One step of one worker."""
        world = self.world
        found = world.held[chosen % len(world.held)]
        match found.stage:
            case "taken":
                # What the broker's record of runs says: nobody runs it any more.
                again = found.again and not any(
                    one.stage == "running" and one.message.id == found.message.id for one in world.held
                )
                answer = world.start(found, again=again)
                if answer.why is StartReason.RUN:
                    found.stage, found.serial, found.starts = "running", answer.serial or None, answer.starts or None
                else:
                    world.held.remove(found)
                    self.wanted.discard(found.message.id if answer.why is StartReason.DUPLICATE else "")
            case "running":
                self.ran[found.message.id] = self.ran.get(found.message.id, 0) + 1
                world.end(found, how)
                found.stage = "retrying" if how is RunOutcome.AGAIN else "told"
            case "retrying":
                world.queue.append((found.message, False))
                found.stage = "told"
            case "told":
                world.held.remove(found)

    @precondition(lambda self: self.world.held)
    @rule()
    def copy(self) -> None:
        """Somebody publishes once more what a worker has."""
        self.world.queue.append((self.world.held[0].message, False))

    @precondition(lambda self: self.world.held)
    @rule(chosen=st.integers(0, 9))
    def kill_a_worker(self, chosen: int) -> None:
        found = self.world.held.pop(chosen % len(self.world.held))
        self.world.queue.insert(0, (found.message, True))

    @rule()
    def purge(self) -> None:
        holder = self.world.key.holder
        if holder is not None and holder.phase == "waiting":
            self.world.store(rules.free(self.world.key, now=self.world.now, drop_next=True))
        self.world.queue.clear()
        self.purged = True

    @rule(seconds=st.sampled_from([1.0, 30.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.store(rules.publish_due(self.world.key, self.world.now))

    @invariant()
    def never_two_run(self) -> None:
        running = [one for one in self.world.held if one.stage == "running"]
        assert len(running) <= 1

    def teardown(self) -> None:
        """Let all that is there come to its end: what was stored has run, and the key is free."""
        lost_holder = self.purged and self.world.key.holder is not None
        for _ in range(1_000):
            if not self.world.queue and not self.world.held:
                self.world.settle()
            if not self.world.queue and not self.world.held:
                break
            if self.world.held:
                self.work(0, RunOutcome.DONE)
            else:
                self.take()
            self.never_two_run()
        else:
            raise AssertionError("it does not come to an end")
        if not lost_holder:
            assert self.world.key.holder is None
            assert self.world.key.next is None
        if not self.purged:
            assert self.wanted <= set(self.ran)


TestKills = Kills.TestCase
TestKills.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


@dataclass
class Logged(World):
    """What is in the log, and what the leader has made of it in memory: the key."""

    written: Key = field(default_factory=lambda: Key(name=KEY))
    number: int = 0
    #: As workers wrote them: of which run, how it ended, and when.
    ends: list[tuple[Delivery, RunOutcome, float]] = field(default_factory=list)
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

    def start(self, found: Delivery, *, again: bool) -> rules.StartAnswer:
        if again:
            self.hear_all()
        answer = super().start(found, again=again)
        if answer.why in (StartReason.COPY, StartReason.DUPLICATE):
            self.hear_all()
            answer = super().start(found, again=again)
        return answer

    def end(self, found: Delivery, how: RunOutcome) -> None:
        self.ends.append((replace(found), how, self.now))

    def hear(self, *, read_again: bool = False) -> None:
        """Of the next end."""
        run, how, at = self.ends[self.heard]
        self.heard += 1
        now = at if read_again else self.now
        step = end(self.key, run.message.id, how, serial=run.serial, starts=run.starts, now=now)
        if step.jobs:
            self.store(step)
        else:
            self.key = step.key

    def hear_all(self) -> None:
        while self.heard < len(self.ends):
            self.hear()

    settle = hear_all


class LaterKills(Kills):
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
            world.key = Key(name=KEY, serial=max(world.number, world.key.serial))
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
