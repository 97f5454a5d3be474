"""The events of a soak: enqueued jobs, runs, and faults. Recorded by several threads."""

import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

#: The pids of parents in a text that names workers.
PIDS = re.compile(r"pid:(\d+)@")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault, with times by the monotonic clock."""

    kind: str
    at: float
    until: float
    #: The names of the workers whose connections were affected, possibly including "publishers".
    links: frozenset[str] = frozenset()
    #: The pids of the affected worker and of the killed process.
    parent: int = 0
    process: int = 0
    #: The queues that refused messages or were deleted, and the number of jobs in the deleted one that no worker had.
    queues: frozenset[str] = frozenset()
    jobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An enqueued job, and when the call started and ended."""

    number: int
    #: "" if the broker didn't confirm it, in which case it may run or not.
    id: str
    raises: bool
    began: float
    ended: float
    kind: str = "plain"
    queue: str = ""
    #: Whether the broker refused to store it.
    refused: bool = False
    #: The unique key, or "".
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to an enqueue whose key was held by another job."""

    key: str
    #: The id of the other job.
    holder: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a job, as recorded by the job."""

    number: int
    id: str
    parent: int
    process: int
    template: int
    began: float
    #: None if it didn't end.
    ended: float | None = None


def runs(lines: Iterable[str]) -> list[Run]:
    """Return the runs that jobs recorded, in the order of their start."""
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
    """A message published by another program."""

    #: The number in its body. Messages with equal bodies share it.
    number: int
    body: bytes
    kind: str
    #: "confirmed", "refused", or "" if unknown.
    outcome: str
    began: float
    ended: float


class Records:
    """All events, in the order in which they were recorded."""

    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.answers: list[Answer] = []
        self.sent: list[Sent] = []
        self.faults: list[Fault] = []
        #: Number of confirmed orders.
        self.stored = 0
        self._numbers = iter(range(1, 10**9))
        self._lock = threading.Lock()

    def number(self) -> int:
        """Return a new unique number."""
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
        """Number of jobs in queues when they were deleted, as reported by the broker."""
        return sum(fault.jobs for fault in list(self.faults))
