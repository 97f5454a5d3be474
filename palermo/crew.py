"""The workers of a broker as others see them, what they are told from afar, and what they answer."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import Any

from palermo.core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that a worker runs at this moment."""

    id: str
    job: str
    queue: str
    slot: int
    #: Unix seconds.
    started_at: float
    #: How far it says it is: a part of 1, and in words; None and "" for one that does not tell.
    progress: float | None = None
    text: str = ""
    #: The newest line that it logged about itself, at most 200 characters of it; "" if none.
    line: str = ""


#: What a worker may be doing.
STATES = ("starting", "idle", "working", "paused", "quiet", "stopping")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """One worker, as it describes itself."""

    #: `pid:<pid>@<host>`.
    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    slots: int
    #: One of STATES.
    state: str
    #: Unix seconds.
    started_at: float
    processed: int = 0
    failed: int = 0
    jobs: tuple[RunningJob, ...] = ()
    #: The ids of jobs that ended here after the broker had taken them back: it can say how.
    outcomes: tuple[str, ...] = ()
    #: What it runs, and what it waits to be allowed to run, of jobs with a limit or a rate: keys, and ids of jobs.
    permits: tuple[tuple[str, str], ...] = ()
    asks: tuple[tuple[str, str], ...] = ()
    #: Whether it is the one that brings delayed jobs to their queues when they are due.
    clock: bool = False

    def to_plain(self) -> dict[str, Any]:
        """As values that JSON has, to travel between processes."""
        return {
            **{name: getattr(self, name) for name in self.__slots__ if name not in _LISTS},
            "queues": list(self.queues),
            "outcomes": list(self.outcomes),
            "permits": [list(pair) for pair in self.permits],
            "asks": [list(pair) for pair in self.asks],
            "jobs": [{name: getattr(job, name) for name in RunningJob.__slots__} for job in self.jobs],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "WorkerInfo":
        """The worker that to_plain described; fields this version does not know are left out."""
        known = {name: plain[name] for name in cls.__slots__ if name in plain}
        jobs = tuple(
            RunningJob(**{name: job[name] for name in RunningJob.__slots__ if name in job})
            for job in plain.get("jobs", ())
        )
        lists = {name: tuple(plain.get(name, ())) for name in ("queues", "outcomes")}
        pairs = {name: tuple((str(key), str(id)) for key, id in plain.get(name, ())) for name in ("permits", "asks")}
        return cls(**{**known, **lists, **pairs, "jobs": jobs})


#: The fields of a WorkerInfo that JSON has as lists.
_LISTS = ("jobs", "queues", "outcomes", "permits", "asks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What workers are told from afar: see palermo/worker/orders.py for the actions and what they answer."""

    action: str
    #: The job that it is about, if it is about one.
    id: str = ""
    #: The ids of the workers that are meant; none for all.
    workers: tuple[str, ...] = ()
    #: Who gave it, for the workers' logs.
    by: str = ""

    def to_plain(self) -> dict[str, Any]:
        """As values that JSON has, to travel between processes."""
        return {"ask": self.action, "id": self.id, "workers": list(self.workers), "by": self.by}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Order":
        """The order that to_plain wrote; whatever is not as it should be there is as if it were absent."""
        text = {name: found if isinstance(found := plain.get(name), str) else "" for name in ("ask", "id", "by")}
        named = plain.get("workers")
        workers = tuple(str(one) for one in named) if isinstance(named, list) else ()
        return cls(action=text["ask"], id=text["id"], by=text["by"], workers=workers)

    def meant_for(self, worker: str) -> bool:
        """Whether this worker is to obey it."""
        return not self.workers or worker in self.workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one worker had to say to an order."""

    #: The worker's id.
    worker: str
    #: As JSON has it.
    values: Mapping[str, Any] = field(default_factory=dict)


#: How a worker obeys: the values of its answer, or None if the order is not for it, which is no answer.
Obey = Callable[[Order], Awaitable[Mapping[str, Any] | None]]


async def deaf(order: Order) -> None:
    """Obey nothing."""
