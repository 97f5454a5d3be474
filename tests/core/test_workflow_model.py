"""A model of workflows on a broker: workers, leaders and the broker are killed before any of their effects.

The rules are the real ones. The log is what a broker keeps: snapshots and ends, read in any order by each leader. What
was acknowledged lately comes back when the broker is killed. Operators cancel workflows and retry their failed steps.
"""

import os
import random
from collections import Counter

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
    failed_runs,
    fold,
    generation_of,
    has_failed,
    must_seal,
    retried,
    sealed,
    signalled,
    time_passed,
    view,
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
        first = Flow(plans=graph(self.chance, 0), deadline=deadline)
        self.snapshots = [first]
        self.ends: list[StepEnd] = []
        #: Records that were acknowledged lately: a killed broker has them again.
        self.forgotten: list[StepEnd] = []
        #: Messages: a path and a generation. Several of one kind are copies.
        self.queue: Counter[tuple[str, int]] = Counter()
        self.runs: Counter[tuple[str, int]] = Counter()
        #: By step and generation, on which statuses it was released.
        self.grounds: dict[tuple[str, int], dict[str, Phase]] = {}
        self.leader: Leader | None = None
        self.operations = self.chance.randint(0, 3)

    def effect(self) -> None:
        """Every effect begins here; a process may die before it."""
        if self.chance.random() < self.kills:
            raise Killed

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
        run = str(self.chance.random())
        self.ends.append(StepEnd(path=path, how=how, generation=generation, adds=adds, run=run))
        self.effect()
        self.queue[job] -= 1
        self.queue = +self.queue

    def kill_broker(self) -> None:
        """Connections end; acknowledgements of the last moment are forgotten, confirmed messages are not."""
        self.leader = None
        self.ends += self.chance.sample(self.forgotten, self.chance.randint(0, len(self.forgotten)))
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

    @property
    def flow(self) -> Flow:
        return fold(self.snapshots, self.ends)


class Leader:
    """Whoever leads: it reads all records, publishes what is to be out, and writes snapshots."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.flow = fold(
            world.chance.sample(world.snapshots, len(world.snapshots)), world.chance.sample(world.ends, len(world.ends))
        )
        self.read = len(world.ends)
        #: What this leader has published, and what its predecessors published for all it can find.
        self.published = set(world.queue) if world.chance.random() < 0.7 else set()

    def turn(self) -> None:
        world = self.world
        for end in world.ends[self.read :]:
            self.flow = fold([self.flow], [end])
        self.read = len(world.ends)
        if must_seal(self.flow):
            self.store(sealed(self.flow))
        timed = time_passed(self.flow, world.now)
        if timed is not self.flow or world.chance.random() < 0.5:
            self.store(advanced(timed, world.now, window=WINDOW)[0])
        known = view(self.flow)
        self.publish(known)
        if known.whole.over or world.chance.random() < 0.2:
            self.operate(known)
        if world.chance.random() < 0.2:
            self.store(sealed(self.flow))
            self.acknowledge()

    def store(self, flow: Flow) -> None:
        self.world.effect()
        self.world.snapshots.append(flow)
        self.flow = flow

    def acknowledge(self) -> None:
        """What a snapshot contains is acknowledged."""
        self.world.effect()
        self.world.forgotten += self.world.ends
        self.world.ends, self.read = [], 0
        self.world.effect()
        self.world.snapshots = self.world.snapshots[-self.world.chance.randint(1, 2) :]

    def publish(self, known: View) -> None:
        members = [f"{path}:{number}" for path, map in self.flow.maps.items() for number in map.out()]
        for path in sorted([*known.out, *members]):
            job = (path, generation_of(self.flow, path))
            plan = plan_of(self.flow, path)
            if plan is None or plan.signal or job in self.published:
                continue
            self.world.effect()
            self.world.queue[job] += 1
            prefix = path.rpartition("/")[0]
            before = {name for condition in plan.after for name in condition.steps}
            grounds = {name: known.steps[f"{prefix}/{name}" if prefix else name].phase for name in before}
            assert self.world.grounds.setdefault(job, grounds) == grounds, f"{path} was released on other grounds"
            self.published.add(job)

    def operate(self, known: View) -> None:
        """An operator, or another program, does something to the workflow."""
        waits = [path for path in known.out if (plan := plan_of(self.flow, path)) and plan.signal]
        if waits:
            self.store(signalled(self.flow, self.world.chance.choice(sorted(waits)).rpartition("/")[2]))
        elif self.world.operations:
            self.world.operations -= 1
            self.store(sealed(self.flow))
            failed = sorted(failed_runs(self.flow))
            assert all(has_failed(self.flow, path) for path in failed)
            if failed and self.world.chance.random() < 0.7:
                try:
                    again = retried(
                        self.flow, self.world.chance.sample(failed, self.world.chance.randint(1, len(failed)))
                    )
                except ValueError:
                    return
                self.store(again)
            elif self.world.chance.random() < 0.5:
                self.store(cancelled(self.flow))


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
            if not world.queue and view(flow).whole.over and world.leader is not None and not must_seal(flow):
                break
        else:
            raise AssertionError(f"seed {seed}: the workflow does not end: {view(world.flow)}")

        known = view(world.flow)
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
