"""The rules of workflows: which steps may run, what the end of a step changes, and what cancel and retry do.

Pure: no clock, no randomness, no broker. After each end, a broker stores the workflow's state together with the jobs
that have become runnable.

Law: if a step runs several times, only the first stored end counts, even if other runs end differently or add other
steps. No later end reverts it.

The steps that a step adds form a nested workflow, and the outer step is over when all of them are. A nested step's name
starts with the outer step's name: `pay/charge`. The members of a map are numbered: `resize:17`. Their state is stored
as bits, 25 kB for a map of 100,000, and only a window of them is released at a time.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace


class When(StrEnum):
    """The result of the preceding steps that lets a step run."""

    DONE = "done"
    FAILED = "failed"
    OVER = "over"


class How(StrEnum):
    """The end of a run, or of a step that never ran."""

    DONE = "done"
    FAILED = "failed"
    DISCARDED = "discarded"
    CANCELLED = "cancelled"


#: Maximum number of a map's released members. More are released when half of these have ended.
WINDOW = 1_000

#: Upper bound of the digits of a member's number.
_DIGITS = 10


class Condition(Struct, frozen=True, array_like=True):
    """Steps of the same flow that must have ended with this result."""

    steps: tuple[str, ...]
    when: When = When.DONE


class Plan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step as it was added; it never changes."""

    name: str
    after: tuple[Condition, ...] = ()
    #: Number of failures that still count as done: 1 for a step with `may_fail`, any number for a map.
    may_fail: int = 0
    #: Number of members of a map; None for a single step.
    members: int | None = None
    #: Whether it is a signal, which has no job and is done once it is sent.
    signal: bool = False
    #: Seconds after which an unsent signal fails; None for never.
    timeout: float | None = None


class StepEnd(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of one run."""

    #: The path of the step, with the steps that contain it: `pay/charge`, `resize:17`.
    path: str
    how: How
    #: Increases each time the step is run again.
    generation: int = 0
    #: The steps that the run added, or None.
    adds: tuple[Plan, ...] | None = None


class Members(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The members of a map, as bits in the order of their numbers, the first in the lowest bit."""

    #: Number of members that are or will be released. It is stored before their release.
    released: int = 0
    #: All members below this number are over, so the bits of `over` start here.
    floor: int = 0
    over: bytes = b""
    #: The members that failed or were cancelled, from number 0.
    failed: bytes = b""
    #: Members that added steps or run again. Their bits say that they are over; `Flow.ends` has their real state.
    apart: frozenset[int] = frozenset()

    @property
    def over_count(self) -> int:
        """Number of members that are over."""
        return self.floor + _bits(self.over).bit_count()

    @property
    def failed_count(self) -> int:
        """Number of members that failed."""
        return _bits(self.failed).bit_count()

    def out(self) -> Iterator[int]:
        """The released members that are not over, except those in `apart`."""
        over = _bits(self.over)
        return (number for number in range(self.floor, self.released) if not over >> (number - self.floor) & 1)


def _bits(stored: bytes) -> int:
    return int.from_bytes(stored, "little")


def _stored(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


class Flow(Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """The state of a workflow."""

    plans: tuple[Plan, ...]
    ends: Mapping[str, StepEnd] = {}
    #: The generation of steps to run again, with all steps below them; the others have 0.
    generations: Mapping[str, int] = {}
    #: Steps that were cancelled before they were released.
    stopped: frozenset[str] = frozenset()
    #: The signals that were sent.
    signals: frozenset[str] = frozenset()
    maps: Mapping[str, Members] = {}
    #: When awaited signals time out, in Unix seconds.
    alarms: Mapping[str, float] = {}
    #: Number of cancels.
    cancels: int = 0
    #: When it is cancelled and ends as failed, in Unix seconds; and whether that has happened.
    deadline: float | None = None
    expired: bool = False

    @cached_property
    def view(self) -> "View":
        """The conclusions from this state."""
        return _view(self)


class Phase(StrEnum):
    """The phase of a step."""

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
    """A step's phase, and its effect on the steps behind it."""

    phase: Phase
    #: Whether steps with `when="done"` may run after it, once it is over.
    good: bool = False
    #: Whether it, or something before it, failed or was cancelled.
    bad: bool = False
    over: bool = True


_WAITING, _PENDING, _EXPANDED = (Status(phase, over=False) for phase in (Phase.WAITING, Phase.PENDING, Phase.EXPANDED))
_GOOD = Status(Phase.DONE, good=True)
_OF_END = {
    How.DONE: _GOOD,
    How.FAILED: Status(Phase.FAILED, bad=True),
    How.DISCARDED: Status(Phase.DISCARDED),
    How.CANCELLED: Status(Phase.CANCELLED, bad=True),
}


# -- ends


def ended(flow: Flow, end: StepEnd) -> Flow:
    """The workflow after the end of a run.

    Unchanged if the step's end is already known, belongs to an earlier generation, or the step no longer exists.
    """
    above, slash, _ = end.path.rpartition("/")
    container = flow.ends.get(above)
    if slash and (container is None or container.adds is None):
        return flow
    if end.generation != generation_of(flow, end.path):
        return flow
    path, number = member_of(end.path)
    members = flow.maps.get(path)
    if number is not None:
        if members is None or number >= members.released:
            return flow
        if number not in members.apart:
            return _member_ended(flow, path, members, number, end)
    return flow if end.path in flow.ends else _with_end(flow, end)


def _with_end(flow: Flow, end: StepEnd) -> Flow:
    """The workflow with this end. If it is cancelled, the added steps don't run."""
    added = {f"{end.path}/{plan.name}" for plan in end.adds or ()} if flow.cancels else set()
    return replace(flow, ends={**flow.ends, end.path: end}, stopped=flow.stopped | added)


def _member_ended(flow: Flow, path: str, members: Members, number: int, end: StepEnd) -> Flow:
    """The workflow after the end of a member whose state is a bit."""
    over, bit = _bits(members.over), 1 << max(0, number - members.floor)
    if number < members.floor or over & bit:
        return flow
    members = replace(members, over=_stored(over | bit))
    if end.adds is not None:
        members = replace(members, apart=members.apart | {number})
        flow = _with_end(flow, end)
    elif end.how in (How.FAILED, How.CANCELLED):
        members = replace(members, failed=_stored(_bits(members.failed) | 1 << number))
    return replace(flow, maps={**flow.maps, path: members})


def member_of(path: str) -> tuple[str, int | None]:
    """The map and the member's number; for any other step, its path and None."""
    prefix, slash, name = path.rpartition("/")
    name, _, number = name.partition(":")
    return (prefix + slash + name, int(number)) if number.isdecimal() and len(number) < _DIGITS else (path, None)


def is_member(path: str) -> bool:
    """Whether this is a member of a map, whose end rarely releases other steps."""
    return ":" in path.rpartition("/")[2]


def generation_of(flow: Flow, path: str) -> int:
    """The generation of a step's current run: the highest of its own and those of the steps that contain it."""
    if not flow.generations:
        return 0
    parts = path.replace(":", "/:").split("/")
    above = accumulate(parts, lambda path, part: path + part if part.startswith(":") else f"{path}/{part}")
    return max(flow.generations.get(each, 0) for each in above)


def _tidied(flow: Flow) -> Flow:
    """The same state in less space."""
    maps = {path: _with_floor(members) for path, members in flow.maps.items()}
    flow = replace(flow, maps=maps)
    return _without_done(flow) if any(members.apart for members in maps.values()) else flow


def _with_floor(members: Members) -> Members:
    over = _bits(members.over)
    ended = (~over & (over + 1)).bit_length() - 1
    return replace(members, floor=members.floor + ended, over=_stored(over >> ended)) if ended else members


def _without_done(flow: Flow) -> Flow:
    """The workflow without the steps that members of a map added, if these steps are done. There may be very many."""
    known, ends, maps = flow.view, dict(flow.ends), dict(flow.maps)
    for path, members in flow.maps.items():
        status = {number: known.apart.get(f"{path}:{number}", _PENDING) for number in members.apart}
        done = {number for number, found in status.items() if found.over and not found.bad}
        if done:
            tops = {f"{path}:{number}" for number in done}
            ends = {each: end for each, end in ends.items() if not _is_below(each, tops)}
            maps = {each: one for each, one in maps.items() if not _is_below(each, tops)}
            if path in maps:
                maps[path] = replace(members, apart=members.apart - done)
    return replace(flow, ends=ends, maps=maps)


# -- conclusions from a state


class View(Struct, frozen=True):
    """The facts that follow from the state of a workflow."""

    #: The status of each added step.
    steps: Mapping[str, Status]
    #: The status of the workflow as a whole.
    whole: Status
    #: Steps that should be enqueued or running, and awaited signals. For a map, only the members in `apart`: see
    #: `Members.out`.
    out: frozenset[str]
    #: Maps that may release more members: the number of active members, and that of unreleased ones.
    maps: Mapping[str, tuple[int, int]]
    #: The status of each member that added steps or runs again.
    apart: Mapping[str, Status]


def status_of(known: View, path: str) -> Status | None:
    """The status of a step or of a member that added steps or runs again; None for any other."""
    return known.steps.get(path) or known.apart.get(path)


def _view(flow: Flow) -> View:
    steps: dict[str, Status] = {}
    out: set[str] = set()
    maps: dict[str, tuple[int, int]] = {}
    apart: dict[str, Status] = {}

    def of_job(path: str) -> Status:
        end = flow.ends.get(path)
        if end is None:
            out.add(path)
            return _PENDING
        return _OF_END[end.how] if end.adds is None else whole(path + "/", end.adds)

    def of_map(path: str, plan: Plan) -> Status:
        members = flow.maps.get(path, Members())
        those = {f"{path}:{number}": of_job(f"{path}:{number}") for number in members.apart}
        apart.update(those)
        working = members.released - members.over_count + sum(not each.over for each in those.values())
        if path not in flow.stopped and members.released < (plan.members or 0):
            maps[path] = working, (plan.members or 0) - members.released
            return _PENDING
        if working:
            return _PENDING
        if path in flow.stopped:
            return _OF_END[How.CANCELLED]
        if members.failed_count + sum(each.bad for each in those.values()) <= plan.may_fail:
            return _GOOD
        return _OF_END[How.CANCELLED if flow.cancels else How.FAILED]  # cancelled members count as failed

    def of_step(path: str, plan: Plan, before: Mapping[str, Status]) -> Status:
        if path not in flow.ends and path not in flow.maps:
            if path in flow.stopped:
                return _OF_END[How.CANCELLED]
            # Decided once all preceding steps are over, so that no later end changes the decision.
            if not all(before[name].over for condition in plan.after for name in condition.steps):
                return _WAITING
            if failing := [condition for condition in plan.after if not _holds(condition, before)]:
                return Status(Phase.SKIPPED, bad=any(_is_bad(condition, before) for condition in failing))
        if plan.signal and plan.name in flow.signals and path not in flow.ends:
            return _GOOD
        if plan.members is not None:
            return of_map(path, plan)
        status = of_job(path)
        return _GOOD if status.phase is Phase.FAILED and plan.may_fail else status

    def whole(prefix: str, plans: tuple[Plan, ...]) -> Status:
        found: dict[str, Status] = {}
        for plan in plans:
            steps[prefix + plan.name] = _WAITING  # listed before the steps that it added
            found[plan.name] = steps[prefix + plan.name] = of_step(prefix + plan.name, plan, found)
        if not all(each.over for each in found.values()):
            return _EXPANDED
        if any(each.phase is Phase.FAILED for each in found.values()):
            return _OF_END[How.FAILED]
        if any(each.phase is Phase.CANCELLED for each in found.values()):
            return _OF_END[How.CANCELLED]
        return _GOOD

    result = whole("", flow.plans)
    if flow.expired and result.over:
        result = _OF_END[How.FAILED]
    return View(steps, result, frozenset(out), maps, apart)


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
    """Whether a step is skipped because of a failure, rather than for lack of one."""
    return condition.when is When.DONE and any(before[name].bad for name in condition.steps)


# -- changes by users and by time


def advanced(flow: Flow, now: float, *, window: int = WINDOW) -> tuple[Flow, View]:
    """The state to store, and its view.

    Releases more members of maps, and starts the timeouts of signals.
    """
    flow = _tidied(flow)
    known = flow.view
    while few := {path: found for path, found in known.maps.items() if found[0] <= window // 2}:
        maps = dict(flow.maps)
        for path, (working, left) in few.items():
            members = maps.get(path, Members())
            maps[path] = replace(members, released=members.released + min(left, window - working))
        flow = replace(flow, maps=maps)
        known = flow.view
    waits = {path: plan.timeout for path, plan in _signals(flow) if path in known.out and plan.timeout is not None}
    if waits.keys() != flow.alarms.keys():
        alarms = {path: flow.alarms.get(path, now + seconds) for path, seconds in waits.items()}
        flow = replace(flow, alarms=alarms)
    return flow, known


def plans_of(flow: Flow) -> dict[str, Plan]:
    """The plans of all added steps, by path."""
    return {prefix + plan.name: plan for prefix, plans in _graphs(flow) for plan in plans}


def _signals(flow: Flow) -> Iterator[tuple[str, Plan]]:
    for prefix, plans in _graphs(flow):
        yield from ((prefix + plan.name, plan) for plan in plans if plan.signal)


def signals_out(flow: Flow, known: View) -> list[str]:
    """The paths of awaited signals."""
    return [path for path, _ in _signals(flow) if path in known.out]


def due(flow: Flow) -> float | None:
    """When the next timeout expires, in Unix seconds; None for never."""
    over = flow.expired or flow.view.whole.over
    return min([*flow.alarms.values(), *([] if flow.deadline is None or over else [flow.deadline])], default=None)


def time_passed(flow: Flow, now: float) -> Flow:
    """The workflow after the timeouts that have expired."""
    for path, at in flow.alarms.items():
        if at <= now:
            flow = ended(flow, StepEnd(path=path, how=How.FAILED, generation=generation_of(flow, path)))
    if flow.deadline is not None and flow.deadline <= now and not flow.expired and not flow.view.whole.over:
        flow = replace(cancelled(flow), expired=True)
    return flow


def signalled(flow: Flow, name: str) -> Flow:
    """The workflow after a signal, which may arrive before a step waits for it."""
    return replace(flow, signals=flow.signals | {name})


def cancelled(flow: Flow, top: str = "") -> Flow:
    """The workflow after a cancel of it, or of the step `top`: from now on, only its clean-up steps are released.

    Clean-up steps are those for `failed` or `over` behind steps that have started. A second cancel of the workflow
    stops them too. Awaited signals are no longer accepted. The broker cancels the jobs of released steps.
    """
    if not top:
        flow = replace(flow, cancels=flow.cancels + 1)
    known = flow.view
    for path in signals_out(flow, known):
        if path == top or is_inside(path, top):
            flow = ended(flow, StepEnd(path=path, how=How.CANCELLED, generation=generation_of(flow, path)))
    kept = set() if flow.cancels > 1 else set(_clean_ups(flow, known)) - {top}
    gone = {path for path, status in known.steps.items() if status.phase is Phase.WAITING and path not in kept}
    stopped = {path for path in gone | known.maps.keys() if path == top or is_inside(path, top)}
    return replace(flow, stopped=flow.stopped | stopped)


def _clean_ups(flow: Flow, known: View) -> Iterator[str]:
    """The clean-up steps that may still run: unreleased ones for `failed` or `over` behind a started step."""
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
    """The workflow's graphs of steps, each with the prefix of its paths: its own, and those that steps added."""
    yield "", flow.plans
    yield from ((f"{path}/", end.adds) for path, end in flow.ends.items() if end.adds is not None)


def renewed(flow: Flow, plans: tuple[Plan, ...]) -> Flow:
    """A new workflow with the id of this one, which is over. Late ends and outputs of the old one don't count."""
    generation = max(flow.generations.values(), default=0) + 2  # no requeue of the old one has come so far
    return Flow(plans=plans, generations={plan.name: generation for plan in plans})


def failed_runs(flow: Flow) -> Iterator[str]:
    """The steps and members whose failed jobs made the workflow fail."""
    yield from (path for path, end in flow.ends.items() if end.adds is None and end.how is How.FAILED)
    for path, members in flow.maps.items():
        failed = _bits(members.failed)
        yield from (f"{path}:{number}" for number in range(failed.bit_length()) if failed >> number & 1)


def has_failed(flow: Flow, path: str) -> bool:
    """Whether a step or member has failed and may run again."""
    path_of_map, number = member_of(path)
    members = flow.maps.get(path_of_map)
    if number is not None and (members is None or number not in members.apart):
        return members is not None and bool(_bits(members.failed) >> number & 1)
    end = flow.ends.get(path)
    return end is not None and end.adds is None and end.how is How.FAILED


def retried(flow: Flow, paths: Iterable[str]) -> Flow:
    """The workflow in which these failed steps run again, and then the steps behind them, without a deadline.

    Raises ValueError while one of the steps behind is active.
    """
    again = set(paths)
    behind = {path for each in again for path in _behind(flow, each)}
    known = flow.view
    working = sorted(path for path in known.out if _is_below(path, behind))
    working += sorted(path for path in flow.maps if _is_below(path, behind) and not known.steps[path].over)
    if working:
        raise ValueError(f"{working[0]} has not ended yet, and it runs after a step that is to run again")
    maps = {path: members for path, members in flow.maps.items() if not _is_below(path, behind)}
    for each in again:
        path, number = member_of(each)
        if number is not None and path in maps:
            members = maps[path]
            failed = _stored(_bits(members.failed) & ~(1 << number))
            maps[path] = replace(members, failed=failed, apart=members.apart | {number})
    generations = {path: _highest(flow, path) + 1 for path in again | behind}
    return replace(
        flow,
        ends={path: end for path, end in flow.ends.items() if path not in again and not _is_below(path, behind)},
        generations={**flow.generations, **generations},
        maps=maps,
        stopped=frozenset(path for path in flow.stopped if not _is_below(path, behind)),
        deadline=None,
    )


def _highest(flow: Flow, top: str) -> int:
    """The highest generation of a step and of all steps below it."""
    below = (number for path, number in flow.generations.items() if _is_below(path, {top}))
    return max(generation_of(flow, top), *below, 0)


def _behind(flow: Flow, path: str) -> Iterator[str]:
    """The steps that run after this one, in its own graph and behind each step that contains it."""
    graphs = dict(_graphs(flow))
    while path:
        prefix, slash, name = path.rpartition("/")
        later = {name.partition(":")[0]}
        for plan in graphs[prefix + slash]:
            if later.intersection(step for condition in plan.after for step in condition.steps):
                later.add(plan.name)
                yield prefix + slash + plan.name
        path = prefix


def is_inside(path: str, top: str) -> bool:
    """Whether the path is inside this step or, if `top` is empty, inside the workflow."""
    return not top or path.startswith((f"{top}/", f"{top}:"))


def _is_below(path: str, tops: set[str]) -> bool:
    """Whether the path is one of these steps, or is inside one."""
    return any(path == top or is_inside(path, top) for top in tops)
