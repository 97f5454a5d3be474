"""The rules of workflows: which steps may run, what an end changes, and what cancel and retry do.

Pure: no clock, no chance, no broker. A broker stores two kinds of records about a workflow: the end of a run, and a
snapshot, which is the whole state with a version. `fold` makes the state of them, in any order and however often each
was stored.

Law: a run that ended well without adding steps counts from the moment when its end is stored. Any other end, and any
end that adds steps, counts only once a snapshot has sealed it. So nothing is released because of something that another
record may still take back: of two runs of one step, one may fail and the other succeed, and each may add other steps.

A step that adds steps contains a workflow: it is over when they are. Its steps are named below it: `pay/charge`; the
members of a map by their number: `resize.17`.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace


class When(StrEnum):
    """How the steps before must have ended for a step to run."""

    DONE = "done"
    FAILED = "failed"
    OVER = "over"


class How(StrEnum):
    """How a run, or a step that never ran, ended."""

    DONE = "done"
    FAILED = "failed"
    DISCARDED = "discarded"
    CANCELLED = "cancelled"


class Condition(Struct, frozen=True):
    """These steps of the same flow must have ended in this way."""

    steps: tuple[str, ...]
    when: When = When.DONE


class Plan(Struct, frozen=True, kw_only=True):
    """A step as it was added; it never changes."""

    name: str
    after: tuple[Condition, ...] = ()
    #: The number of failures that count as done: 1 for a step with `may_fail`, any for a map.
    may_fail: int = 0
    #: The number of members of a map; None for a single step.
    members: int | None = None
    #: Whether it has no job and is done once somebody sends its signal.
    signal: bool = False


class StepEnd(Struct, frozen=True, kw_only=True):
    """The end of one run."""

    #: The step, with the steps that contain it: `pay/charge`, `resize.17`.
    path: str
    how: How
    #: Grows each time the step is to run again.
    generation: int = 0
    #: The steps that the run added; None if it added none.
    adds: tuple[Plan, ...] | None = None
    #: Tells two runs of one step apart.
    run: str = ""
    sealed: bool = False


class Flow(Struct, frozen=True, kw_only=True):
    """A workflow: the state that all its records make together."""

    plans: tuple[Plan, ...]
    #: Of two snapshots the one with the higher version counts.
    version: int = 0
    ends: Mapping[str, StepEnd] = {}
    #: The generation of each step that is to run again; the others have 0.
    generations: Mapping[str, int] = {}
    #: Steps that were cancelled before they were released.
    stopped: frozenset[str] = frozenset()
    #: The signals that were sent.
    signals: frozenset[str] = frozenset()
    #: By map, how many members are released, or will be next: this is stored before they are.
    released: Mapping[str, int] = {}
    #: How often it was cancelled.
    cancels: int = 0


class Phase(StrEnum):
    """Where a step is."""

    WAITING = "waiting"
    #: Released: it waits in its queue, runs, or waits for a retry.
    PENDING = "pending"
    #: Its run added steps that are not over.
    EXPANDED = "expanded"
    DONE = "done"
    FAILED = "failed"
    DISCARDED = "discarded"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class Status(Struct, frozen=True):
    """A step's phase, and what it means for the steps behind it."""

    phase: Phase
    #: Whether a step behind it with `when="done"` may run, once it is over.
    good: bool = False
    #: Whether something failed or was cancelled, here or before it.
    bad: bool = False

    @property
    def over(self) -> bool:
        return self.phase not in (Phase.WAITING, Phase.PENDING, Phase.EXPANDED)


_WAITING, _PENDING, _EXPANDED = Status(Phase.WAITING), Status(Phase.PENDING), Status(Phase.EXPANDED)
_GOOD = Status(Phase.DONE, good=True)
_OF_END = {
    How.DONE: _GOOD,
    How.FAILED: Status(Phase.FAILED, bad=True),
    How.DISCARDED: Status(Phase.DISCARDED),
    How.CANCELLED: Status(Phase.CANCELLED, bad=True),
}


# -- records


def fold(snapshots: Iterable[Flow], ends: Iterable[StepEnd]) -> Flow:
    """The state of a workflow. Raises ValueError without a snapshot."""
    flow = max(snapshots, key=lambda each: each.version, default=None)
    if flow is None:
        raise ValueError("a workflow without a snapshot has no steps")
    for end in ends:
        flow = ended(flow, end)
    return flow


def ended(flow: Flow, end: StepEnd) -> Flow:
    """The workflow after the end of a run; unchanged by an end of an earlier generation, or one that counts less."""
    if end.generation != flow.generations.get(end.path, 0):
        return flow
    known = flow.ends.get(end.path)
    if known is not None and (known.sealed or _rank(known) <= _rank(end)):
        return flow
    return replace(flow, ends={**flow.ends, end.path: end})


def _rank(end: StepEnd) -> tuple[int, str, str]:
    """Of the ends of one generation that of the lowest rank counts: done, and nothing added, beats all others."""
    if end.adds is not None:
        return 1, end.run, end.how
    return 0 if end.how is How.DONE else 2, end.how, end.run


def sealed(flow: Flow) -> Flow:
    """The next snapshot: all ends that are known now count for good."""
    ends = {path: replace(end, sealed=True) for path, end in flow.ends.items()}
    return replace(flow, version=flow.version + 1, ends=ends)


# -- what follows from a state


class View(Struct, frozen=True):
    """What follows from the state of a workflow."""

    #: The status of each step that has been added.
    steps: Mapping[str, Status]
    #: The status of the workflow as a whole.
    whole: Status
    #: The steps and members that are to be in a queue or running, and the signals that are waited for.
    out: frozenset[str]
    #: The maps that may release members, with the number of members that are out.
    maps: Mapping[str, int]


def view(flow: Flow, *, certain: bool = True) -> View:
    """What follows from the state; with `certain` only what no later record takes back."""
    steps: dict[str, Status] = {}
    out: set[str] = set()
    maps: dict[str, int] = {}

    def of_end(path: str, end: StepEnd) -> Status:
        if end.adds is not None:
            return whole(path + "/", end.adds) if end.sealed or not certain else _PENDING
        return _OF_END[end.how] if end.sealed or end.how is How.DONE or not certain else _PENDING

    def of_job(path: str) -> Status:
        end = flow.ends.get(path)
        status = _PENDING if end is None else of_end(path, end)
        if status.phase is Phase.PENDING:
            out.add(path)
        return status

    def of_map(path: str, plan: Plan) -> Status:
        size, released = plan.members or 0, flow.released.get(path, 0)
        members = [of_job(f"{path}.{number}") for number in range(released)]
        working = sum(not each.over for each in members)
        if path not in flow.stopped and released < size:
            maps[path] = working
            return _PENDING
        if working:
            return _PENDING
        bad = sum(each.bad for each in members)
        if path in flow.stopped:
            return _OF_END[How.CANCELLED]
        return _GOOD if bad <= plan.may_fail else _OF_END[How.FAILED]

    def of_step(path: str, plan: Plan, before: Mapping[str, Status]) -> Status:
        if path not in flow.ends and not flow.released.get(path):
            if path in flow.stopped:
                return _OF_END[How.CANCELLED]
            # Decided once all steps before it are over: no later end changes the decision.
            if not all(before[name].over for condition in plan.after for name in condition.steps):
                return _WAITING
            if failing := [condition for condition in plan.after if not _holds(condition, before)]:
                return Status(Phase.SKIPPED, bad=any(_is_bad(condition, before) for condition in failing))
        if plan.signal and plan.name in flow.signals:
            return _GOOD
        if plan.members is not None:
            return of_map(path, plan)
        status = of_job(path)
        return _GOOD if status.phase is Phase.FAILED and plan.may_fail else status

    def whole(prefix: str, plans: tuple[Plan, ...]) -> Status:
        found: dict[str, Status] = {}
        for plan in plans:
            found[plan.name] = steps[prefix + plan.name] = of_step(prefix + plan.name, plan, found)
        if not all(each.over for each in found.values()):
            return _EXPANDED
        if any(each.phase is Phase.FAILED for each in found.values()):
            return _OF_END[How.FAILED]
        if any(each.phase is Phase.CANCELLED for each in found.values()):
            return _OF_END[How.CANCELLED]
        return _GOOD

    result = whole("", flow.plans)
    return View(steps, result, frozenset(out), maps)


def _holds(condition: Condition, before: Mapping[str, Status]) -> bool:
    those = [before[name] for name in condition.steps]
    match condition.when:
        case When.DONE:
            return all(each.good for each in those)
        case When.FAILED:
            return any(each.bad for each in those)
        case When.OVER:
            return True


def _is_bad(condition: Condition, before: Mapping[str, Status]) -> bool:
    """Whether a step is skipped because something failed, and not because nothing did."""
    return condition.when is When.DONE and any(before[name].bad for name in condition.steps)


def must_seal(flow: Flow) -> bool:
    """Whether something waits for a snapshot: an end that counts only when it is sealed changes what may run."""
    now, then = view(flow), view(flow, certain=False)
    return not then.out <= now.out or not then.maps.keys() <= now.maps.keys() or now.whole != then.whole


# -- what people and the clock do: the result is a snapshot, which is stored before anything else happens


def release_members(flow: Flow, path: str, upto: int) -> Flow:
    """Release the members of a map up to this number, in a snapshot that is stored before they are published."""
    return replace(sealed(flow), released={**flow.released, path: max(upto, flow.released.get(path, 0))})


def signalled(flow: Flow, name: str) -> Flow:
    """The workflow after a signal; it may come before a step waits for it."""
    return replace(sealed(flow), signals=flow.signals | {name})


def stopped(flow: Flow, paths: Iterable[str], how: How) -> Flow:
    """The workflow after released steps have ended without a run: purged, discarded, lost, or timed out."""
    flow = sealed(flow)
    ends = {path: _sealed_end(flow, path, how) for path in paths if path not in flow.ends}
    return replace(flow, ends={**flow.ends, **ends})


def _sealed_end(flow: Flow, path: str, how: How) -> StepEnd:
    return StepEnd(path=path, how=how, generation=flow.generations.get(path, 0), sealed=True)


def cancelled(flow: Flow) -> Flow:
    """Release nothing more, but for clean-up: steps for `failed` or `over` behind steps that have begun.

    A second call stops these too. The broker cancels the jobs of steps that are released.
    """
    flow = replace(sealed(flow), cancels=flow.cancels + 1)
    known = view(flow)
    kept = set() if flow.cancels > 1 else set(_clean_ups(flow, known))
    gone = {path for path, status in known.steps.items() if status.phase is Phase.WAITING and path not in kept}
    return replace(flow, stopped=flow.stopped | gone | known.maps.keys())


def _clean_ups(flow: Flow, known: View) -> Iterator[str]:
    """The waiting steps for `failed` or `over` that are behind a step that has begun."""
    for prefix, plans in _graphs(flow):
        begun: set[str] = set()
        for plan in plans:
            status = known.steps.get(prefix + plan.name, _WAITING)
            names = [name for condition in plan.after for name in condition.steps]
            if status.phase not in (Phase.WAITING, Phase.SKIPPED) or begun.intersection(names):
                begun.add(plan.name)
            if begun.intersection(names) and any(each.when is not When.DONE for each in plan.after):
                yield prefix + plan.name


def _graphs(flow: Flow) -> Iterator[tuple[str, tuple[Plan, ...]]]:
    """The workflow's own steps, and those that steps added, with the beginning of their paths."""
    yield "", flow.plans
    yield from ((f"{path}/", end.adds) for path, end in flow.ends.items() if end.adds is not None)


def failed_runs(flow: Flow) -> list[str]:
    """The steps and members whose jobs are among the failed ones, and made the workflow fail."""
    return [path for path, end in flow.ends.items() if end.adds is None and end.how is How.FAILED]


def retried(flow: Flow, paths: Iterable[str]) -> Flow:
    """Run these failed steps again, and then all that comes behind them. Raises ValueError while that is out."""
    flow, again = sealed(flow), set(paths)
    behind = {path for each in again for path in _behind(flow, each)}
    working = sorted(path for path in view(flow).out if _is_below(path, behind))
    if working:
        raise ValueError(f"{working[0]} comes behind a step that is to run again, and has not ended yet")
    reset = again | {path for path in flow.ends if _is_below(path, behind)}
    maps = {path for path in flow.released if _is_below(path, behind)}
    generations = {path: flow.generations.get(path, 0) + 1 for path in reset}
    return replace(
        flow,
        ends={path: end for path, end in flow.ends.items() if path not in reset},
        generations={**flow.generations, **generations},
        released={path: number for path, number in flow.released.items() if path not in maps},
        stopped=frozenset(path for path in flow.stopped if not _is_below(path, behind)),
    )


def _behind(flow: Flow, path: str) -> Iterator[str]:
    """The steps that come after this one, in its own graph and behind each step that contains it."""
    graphs = dict(_graphs(flow))
    while path:
        prefix, slash, name = path.rpartition("/")
        later = {name.partition(".")[0]}
        for plan in graphs[prefix + slash]:
            if later.intersection(step for condition in plan.after for step in condition.steps):
                later.add(plan.name)
                yield prefix + slash + plan.name
        path = prefix


def _is_below(path: str, tops: set[str]) -> bool:
    """Whether the path is one of these steps, a member of one, or inside one."""
    return any(path == top or path.startswith((f"{top}/", f"{top}.")) for top in tops)
