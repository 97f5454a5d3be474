"""The events of a soak as values: jobs enqueued, runs, and harms; written down by many threads."""

import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

#: Parents in a text that names workers.
PIDS = re.compile(r"pid:(\d+)@")


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
    #: The queues that refused or were deleted, and how many jobs the deleted one had that no worker had.
    queues: frozenset[str] = frozenset()
    jobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A job that was to be enqueued, and when the call for it began and ended."""

    number: int
    #: "" if the broker did not confirm it: it may run or not.
    id: str
    raises: bool
    began: float
    ended: float
    kind: str = "plain"
    queue: str = ""
    #: Whether the broker said that it would not store it.
    refused: bool = False
    #: "" for a job without.
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An enqueue with a key that another job had."""

    key: str
    #: The id of that job.
    holder: str
    at: float


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
    match = PIDS.match(worker)
    assert match is not None, worker
    return int(match[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A message that another program published."""

    #: What its body says; messages with equal bodies have one.
    number: int
    body: bytes
    kind: str
    #: "confirmed", "refused", or "" if nobody knows.
    outcome: str
    began: float
    ended: float


class Records:
    """All of it, in the order in which it came."""

    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.answers: list[Answer] = []
        self.sent: list[Sent] = []
        self.harms: list[Harm] = []
        #: How many of the orders were confirmed.
        self.stored = 0
        self._numbers = iter(range(1, 10**9))
        self._lock = threading.Lock()

    def number(self) -> int:
        """One that nothing else has."""
        with self._lock:
            return next(self._numbers)

    def ordered(self, orders: Sequence[Order]) -> None:
        with self._lock:
            self.orders += orders
            self.stored += sum(bool(order.id) for order in orders)

    def answered(self, answer: Answer) -> None:
        with self._lock:
            self.answers.append(answer)

    def published(self, sent: Iterable[Sent]) -> None:
        with self._lock:
            self.sent += sent

    @property
    def deleted(self) -> int:
        """How many jobs were in queues when these were deleted, as the broker said."""
        return sum(harm.jobs for harm in list(self.harms))
