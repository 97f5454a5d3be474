"""A model of workflows on a broker: workers, leaders and the broker are killed before any of their effects.

The rules are the real ones. The broker keeps the state together with the jobs that it makes possible, and the ends that
workers have written. What was acknowledged lately comes back when the broker is killed. Operators cancel workflows and
retry their failed steps.
"""

import os
import random
from collections import Counter
from contextlib import suppress

import pytest

from palermo.core.workflow_rules import (
    Condition,
    Flow,
    How,
    Phase,
    Plan,
    StepEnd,
    View,
    When,
    advanced,
    cancelled,
    ended,
    failed_runs,
    generation_of,
    has_failed,
    retried,
    signalled,
    time_passed,
)

WORKFLOWS = int(os.environ.get("PALERMO_MODEL", "400"))
WINDOW = 4


class Killed(Exception):
    """The process that was to do something is dead."""


def graph(chance: random.Random, depth: int) -> tuple[Plan, ...]:
    """Some steps, each behind some of those before it."""
    plans: list[Plan] = []
    for number in range(chance.randint(1, 5 if depth == 0 else 3)):
        after = []
        for _ in range(chance.choice((0, 1, 1, 2)) if plans else 0):
            names = tuple(each.name for each in chance.sample(plans, min(len(plans), chance.randint(1, 2))))
            after.append(Condition(names, chance.choice((When.DONE, When.DONE, When.FAILED, When.OVER))))
        kind = chance.random()
        plans.append(
            Plan(
                name=f"s{number}",
                after=tuple(after),
                may_fail=chance.choice((0, 0, 1, 2)),
                members=chance.randint(0, 9) if kind < 0.2 else None,
                signal=kind > 0.95,
                timeout=chance.choice((None, 5.0)) if kind > 0.95 else None,
            )
        )
    return tuple(plans)


class World:
    """One workflow, its log and its queue."""

    def __init__(self, seed: int, kills: float) -> None:
        self.chance = random.Random(seed)
        self.kills = kills
        self.now = 0.0
        deadline = 60.0 if self.chance.random() < 0.1 else None
        #: The state, and the jobs stored with it that may not be in the queue yet.
        self.flow = Flow(plans=graph(self.chance, 0), deadline=deadline)
        self.owed: list[tuple[str, int]] = []
        #: The ends that no leader has acknowledged.
        self.ends: list[StepEnd] = []
        #: Ends that were acknowledged lately: a killed broker may have them again.
        self.forgotten: list[StepEnd] = []
        #: Messages: a path and a generation. Several of one kind are copies.
        self.queue: Counter[tuple[str, int]] = Counter()
        self.runs: Counter[tuple[str, int]] = Counter()
        #: By step and generation, on which statuses it was released.
        self.grounds: dict[tuple[str, int], dict[str, Phase]] = {}
        self.leader: Leader | None = None
        self.operations = self.chance.randint(0, 3)
        self.commit(advanced(self.flow, self.now, window=WINDOW)[0], before=None)

    def effect(self) -> None:
        """Every effect begins here; a process may die before it."""
        if self.chance.random() < self.kills:
            raise Killed

    def commit(self, flow: Flow, before: Flow | None) -> None:
        """Store a state and the jobs of the steps that it releases, in one record."""
        was = set() if before is None else set(jobs_of(before))
        jobs = [job for job in jobs_of(flow) if job not in was]
        known = flow.view
        for path, generation in jobs:
            plan = plan_of(flow, path)
            assert plan is not None
            prefix = path.rpartition("/")[0]
            names = {name for condition in plan.after for name in condition.steps}
            grounds = {name: known.steps[f"{prefix}/{name}" if prefix else name].phase for name in names}
            assert self.grounds.setdefault((path, generation), grounds) == grounds, f"{path} has other grounds"
        self.flow, self.owed = flow, [*self.owed, *jobs]

    def work(self) -> None:
        """A worker takes a job, stores its end, and acknowledges the job."""
        job = self.chance.choice(sorted(self.queue.elements()))
        path, generation = job
        self.effect()
        self.runs[job] += 1
        self.effect()
        depth = path.count("/")
        how = self.chance.choice((How.DONE,) * 5 + (How.FAILED, How.FAILED, How.DISCARDED))
        adds = graph(self.chance, depth + 1) if how is How.DONE and depth < 2 and self.chance.random() < 0.15 else None
        self.ends.append(StepEnd(path=path, how=how, generation=generation, adds=adds))
        self.effect()
        self.queue[job] -= 1
        self.queue = +self.queue

    def kill_broker(self) -> None:
        """Connections end; acknowledgements of the last moment are forgotten, confirmed messages are not."""
        self.leader = None
        back = self.chance.sample(self.forgotten, self.chance.randint(0, len(self.forgotten)))
        self.ends, self.forgotten = [*self.ends, *back], []
        if self.runs and self.chance.random() < 0.5:
            self.queue[self.chance.choice(sorted(self.runs))] += 1

    def step(self) -> None:
        """Somebody does something."""
        self.now += 0.1
        try:
            if self.chance.random() < self.kills / 4:
                self.kill_broker()
            elif self.queue and self.chance.random() < 0.6:
                self.work()
            else:
                if self.leader is None:
                    self.leader = Leader(self)
                self.leader.turn()
        except Killed:
            if self.chance.random() < 0.5:
                self.leader = None


class Leader:
    """Whoever leads: it reads ends, stores the state that they make, and publishes the jobs of released steps."""

    def __init__(self, world: World) -> None:
        self.world = world
        #: What this leader finds in the queue, if it may look.
        self.seen = set(world.queue) if world.chance.random() < 0.7 else set()

    def turn(self) -> None:
        world = self.world
        self.publish()
        ends = list(world.ends)
        flow = world.flow
        for end in ends:
            flow = ended(flow, end)
        self.store(time_passed(flow, world.now))
        world.effect()
        world.forgotten, world.ends = ends, []
        known = world.flow.view
        if known.whole.over or world.chance.random() < 0.2:
            self.operate(known)

    def store(self, flow: Flow) -> None:
        before = self.world.flow
        if flow is not before:
            self.world.effect()
            self.world.commit(advanced(flow, self.world.now, window=WINDOW)[0], before)
            self.publish()

    def publish(self) -> None:
        """Put the jobs that are owed into the queue; those of an earlier leader may be there already."""
        for job in list(self.world.owed):
            if job not in self.seen:
                self.world.effect()
                self.world.queue[job] += 1
            self.world.owed.remove(job)

    def operate(self, known: View) -> None:
        """An operator, or another program, does something to the workflow."""
        flow, chance = self.world.flow, self.world.chance
        waits = [path for path in known.out if (plan := plan_of(flow, path)) and plan.signal]
        if waits:
            self.store(signalled(flow, chance.choice(sorted(waits)).rpartition("/")[2]))
        elif self.world.operations:
            self.world.operations -= 1
            failed = sorted(failed_runs(flow))
            assert all(has_failed(flow, path) for path in failed)
            if failed and chance.random() < 0.7:
                with suppress(ValueError):
                    self.store(retried(flow, chance.sample(failed, chance.randint(1, len(failed)))))
            elif chance.random() < 0.5:
                self.store(cancelled(flow, chance.choice(["", *sorted({**known.steps, **known.apart})])))


def jobs_of(flow: Flow) -> list[tuple[str, int]]:
    """The jobs that are to be in the queue or running, with their generations."""
    members = [f"{path}:{number}" for path, map in flow.maps.items() for number in map.out()]
    paths = sorted([*flow.view.out, *members])
    plans = {path: plan_of(flow, path) for path in paths}
    return [(path, generation_of(flow, path)) for path, plan in plans.items() if plan is not None and not plan.signal]


def plan_of(flow: Flow, path: str) -> Plan | None:
    prefix, _, name = path.rpartition("/")
    if prefix:
        end = flow.ends.get(prefix)
        plans = end.adds if end is not None else None
    else:
        plans = flow.plans
    return next((each for each in plans or () if each.name == name.partition(":")[0]), None)


@pytest.mark.parametrize("kills", [0.0, 0.05, 0.2])
def test_no_workflow_is_lost_and_no_step_runs_early(kills: float) -> None:
    for seed in range(WORKFLOWS):
        world = World(seed, kills)
        for _ in range(20_000):
            world.step()
            flow = world.flow
            if not (world.queue or world.owed or world.ends) and flow.view.whole.over and world.leader is not None:
                break
        else:
            raise AssertionError(f"seed {seed}: the workflow does not end: {world.flow.view}")

        known = world.flow.view
        for (path, generation), grounds in world.grounds.items():
            if generation != generation_of(world.flow, path) or path not in known.steps:
                continue
            prefix = path.rpartition("/")[0]
            now = {name: known.steps[f"{prefix}/{name}" if prefix else name].phase for name in grounds}
            assert now == grounds, f"seed {seed}: {path} ran early"
        for path, status in known.steps.items():
            ran = world.runs[path, generation_of(world.flow, path)]
            plan = plan_of(world.flow, path)
            assert plan is not None
            if plan.members is None and not plan.signal:
                never = status.phase is Phase.SKIPPED or path in world.flow.stopped
                assert (ran == 0) == never, f"seed {seed}: {path} is {status.phase} and ran {ran} times"
            for condition in plan.after if ran else ():
                before = [known.steps[path.rpartition(plan.name)[0] + name] for name in condition.steps]
                held = {
                    When.DONE: all(each.good for each in before),
                    When.FAILED: all(each.over for each in before) and any(each.bad for each in before),
                    When.OVER: all(each.over for each in before),
                }
                assert held[condition.when], f"seed {seed}: {path} ran, but {condition} does not hold"


def test_steps_that_arrive_after_a_cancel_do_not_run() -> None:
    flow, _ = advanced(Flow(plans=(Plan(name="step"), Plan(name="map", members=1))), 0.0)
    flow = cancelled(flow)
    for path in ("step", "map:0"):
        flow = ended(flow, StepEnd(path=path, how=How.DONE, adds=ADDED))

    assert flow.view.out == frozenset()
    assert flow.view.whole.phase is Phase.CANCELLED


ADDED = (Plan(name="inner"),)


@pytest.mark.parametrize(
    ("path", "first", "phase"),
    [
        ("step", StepEnd(path="step", how=How.DONE), Phase.DONE),
        ("step", StepEnd(path="step", how=How.FAILED), Phase.FAILED),
        ("step", StepEnd(path="step", how=How.DONE, adds=ADDED), Phase.EXPANDED),
        ("map", StepEnd(path="map:1", how=How.DONE), Phase.DONE),
        ("map", StepEnd(path="map:1", how=How.FAILED), Phase.FAILED),
        ("map", StepEnd(path="map:1", how=How.DONE, adds=ADDED), Phase.PENDING),
    ],
)
def test_the_first_end_of_a_run_counts(path: str, first: StepEnd, phase: Phase) -> None:
    plans = (Plan(name="step"), Plan(name="map", members=3))
    flow, _ = advanced(Flow(plans=plans), 0.0)
    flow = ended(flow, StepEnd(path="map:2", how=How.DONE))

    flow = ended(flow, first)
    for later in (StepEnd(path=first.path, how=How.FAILED), StepEnd(path=first.path, how=How.DONE)):
        assert ended(flow, later) == flow
    flow = ended(flow, StepEnd(path="map:0", how=How.DONE))

    assert flow.view.steps[path].phase is phase
