"""The books of a soak: what was enqueued, what ran, what was harmed and what failed; and whether they agree."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

#: Seconds that a worker and its broker may need to settle a job that has ended, on a busy machine.
SETTLING = 1.0

#: Seconds for which a process may go on that is being killed, or whose parent was: it may even begin a job.
LINGERING = 0.5

#: What is said of a worker whose result was not wanted, and of one that runs a job a second time itself.
_DROPPED = re.compile(r"result dropped.* id=(\S+)")
_AGAIN = re.compile(r"runs again alone id=(\S+)|job interrupted, giving it back id=(\S+)")
_PID = re.compile(r"pid:(\d+)@")

#: The ones that a kill of a process, and those that the loss of a connection, may be the reason of.
CHILDREN, LINKS = ("child", "template"), ("cut", "stall", "broker killed", "broker restarted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Harm:
    """Something that the soak did, by the monotonic clock."""

    kind: str
    at: float
    until: float
    #: The names of the workers whose connection it was, "publishers" among them.
    links: frozenset[str] = frozenset()
    #: The worker that it was done to, and the process that was killed.
    parent: int = 0
    process: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A job that was to be enqueued, and when the call for it began and ended."""

    number: int
    #: "" if the broker did not confirm it: it may run or not.
    id: str
    raises: bool
    began: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a job, as it wrote it down itself."""

    number: int
    id: str
    parent: int
    process: int
    template: int
    began: float
    #: None if it never came to its end.
    ended: float | None = None


def runs(lines: Iterable[str]) -> list[Run]:
    """What the jobs wrote, in the order in which they began."""
    found: list[Run] = []
    open_runs: dict[tuple[str, str, str], int] = {}
    for line in lines:
        what, number, id, worker, process, template, at = line.split()
        key = (id, worker, process)
        if what == "ends":
            index = open_runs.pop(key)
            found[index] = replace(found[index], ended=float(at))
            continue
        open_runs[key] = len(found)
        run = Run(
            number=int(number),
            id=id,
            parent=pid_of(worker),
            process=int(process),
            template=int(template),
            began=float(at),
        )
        found.append(run)
    return sorted(found, key=lambda run: run.began)


def pid_of(worker: str) -> int:
    match = _PID.match(worker)
    assert match is not None, worker
    return int(match[1])


class Ledger:
    """All that is known at the end of a soak."""

    def __init__(
        self,
        *,
        orders: Sequence[Order],
        runs: Sequence[Run],
        failed: Sequence[Mapping[str, Any]],
        harms: Sequence[Harm],
        names: Mapping[int, str],
        logs: Mapping[int, str],
    ) -> None:
        """`failed` holds the inspector's rows; `names` and `logs` of the workers are by the pid of the parent."""
        self.orders = {order.number: order for order in orders}
        self._runs = runs
        self._failed = failed
        self._harms = harms
        self._names = names
        self._dropped = {pid: set(_DROPPED.findall(log)) for pid, log in logs.items()}
        self._again = {pid: {a or b for a, b in _AGAIN.findall(log)} for pid, log in logs.items()}
        self._by_number: defaultdict[int, list[Run]] = defaultdict(list)
        for run in runs:
            self._by_number[run.number].append(run)
        #: Why jobs ran again, and how many did for each reason.
        self.duplicates: Counter[str] = Counter()
        #: What lies in `failed`, by class of error.
        self.errors = Counter(str(row["error"]["class"]) for row in failed)
        self.wrongs = list(self._audit())

    @property
    def uncertain(self) -> int:
        return sum(not order.id for order in self.orders.values())

    def _audit(self) -> Iterator[str]:
        """Every way in which a promise was broken."""
        numbers: Counter[int] = Counter(row["args"][0] for row in self._failed)
        yield from (f"nobody enqueued {run}" for run in self._runs if run.number not in self.orders)
        for order in self.orders.values():
            ran = self._by_number[order.number]
            copies = numbers[order.number]
            if {run.id for run in ran} - {order.id} and order.id:
                yield f"ran under another id: {order} {ran}"
            if order.id and not copies and not any(run.ended is not None for run in ran):
                yield f"lost: {order} {ran}"
            if order.raises and not copies and ran:
                yield f"raised, and is not in failed: {order} {ran}"
            if copies > max(1, len(ran)):
                yield f"{copies} times in failed after {len(ran)} runs: {order}"
            for first, second in pairwise(ran):
                reason = self._why_again(order, first, second)
                self.duplicates[reason or "unexplained"] += 1
                if not reason:
                    yield f"ran again for no reason: {order} {first} {second}"
        for row in self._failed:
            if wrong := self._wrongly_failed(row):
                yield f"{wrong}: {row['id']} {row['args'][0]} {row['error']['class']}: {row['error']['message']}"

    def _wrongly_failed(self, row: Mapping[str, Any]) -> str:
        order = self.orders.get(row["args"][0])
        if order is None:
            return "nobody enqueued a job that failed"
        match row["error"]["class"]:
            case "ArithmeticError":
                return "" if order.raises else "failed although it does not raise"
            case "palermo.errors.JobCrashed":
                parent = pid_of(row["worker"])
                return "" if self._crashed(order.number, parent) else "crashed although nobody killed its process"
            case "palermo.errors.WorkerDied":
                killed = {harm.parent for harm in self._harms if harm.kind == "parent"}
                accused = {int(pid) for pid in _PID.findall(row["error"]["message"])}
                return "" if len(accused) >= 3 and accused <= killed else "given up for workers that nobody killed"
        return "failed for a reason that the soak does not know"

    def _crashed(self, number: int, parent: int) -> bool:
        ran = [run for run in self._by_number[number] if run.parent == parent]
        kills = [harm for harm in self._harms if harm.kind in CHILDREN and harm.parent == parent]
        if not ran:  # killed before it could write that it begins
            return bool(kills)
        return any(_under(run, kill) for run in ran for kill in kills) or bool(kills and self._again[parent])

    def _why_again(self, order: Order, first: Run, second: Run) -> str:
        """Why the first of two runs was not the last; "" if there is no good reason."""
        name = self._names[first.parent]
        cuts = [harm for harm in self._harms if harm.kind in LINKS and name in harm.links]
        # Whose connection is lost no longer has the job alone.
        shared = any(harm.at <= second.began and harm.until >= first.began for harm in cuts)
        for harm in self._harms:
            mine = harm.kind == "parent" and harm.parent == first.parent
            if mine and _unsettled(first, harm) and (harm.at <= second.began or shared):
                return "parent killed"
            if harm.kind in CHILDREN and _under(first, harm) and first.id in self._again[first.parent]:
                return "child of a shared pool killed"
        if first.id in self._dropped[first.parent]:
            return "result dropped, as the log says"
        for harm in cuts:
            if first.ended is not None and harm.at - SETTLING <= first.ended <= harm.until + SETTLING:
                return "acknowledgement lost with the connection"
        for harm in self._harms:
            if "publishers" in harm.links and harm.at <= order.ended and harm.until >= order.began:
                return "published twice, the connection was lost before the confirm"
        return ""


def _unsettled(run: Run, kill: Harm) -> bool:
    """Whether it was not settled yet when something was killed."""
    return kill.until + LINGERING >= run.began and (run.ended is None or run.ended + SETTLING >= kill.at)


def _under(run: Run, kill: Harm) -> bool:
    return kill.process in (run.process, run.template) and _unsettled(run, kill)


def table(counts: Mapping[str, int] | Collection[tuple[str, int]]) -> str:
    """Counts in one line, the most first."""
    ordered = Counter(dict(counts)).most_common()
    return ", ".join(f"{count:,} {name}" for name, count in ordered) or "none"
