"""What a broker does with jobs that are due later: the part of the contract that palermo.broker.Broker has from here.

A job whose `run_at` is to come waits apart from its queue until then. On RabbitMQ somebody has to
keep the time: one session leads, and others take over when it ends. It alone decides what becomes of a scheduled job,
so of two things that happen at once to one job, coming due and being cancelled, exactly one does.
Jobs that wait to be tried again are among them: they bear the error of the try before.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Protocol

from palermo.core.message import Message
from palermo.core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which scheduled jobs are meant, all of it at once; what asks for nothing means every job."""

    #: These ids; None for any.
    ids: frozenset[str] | None = None
    #: The queue and the job's wire name; they may hold `*`, `?` and `[…]`.
    queue: str | None = None
    job: str | None = None
    #: Only those that wait to be tried again, or only those that do not; None for both.
    retries: bool | None = None
    #: Only those due from one instant to another, both included, in Unix seconds: others need not even be read.
    due: tuple[float, float] | None = None

    @property
    def everything(self) -> bool:
        return self == Chosen()

    def means(self, message: Message) -> bool:
        """Whether this message is meant."""
        return (
            (self.ids is None or message.id in self.ids)
            and (self.queue is None or _named(message.queue, self.queue))
            and (self.job is None or _named(message.job, self.job))
            and (self.retries is None or self.retries is (message.failure is not None))
            and (self.due is None or self.due[0] <= (message.run_at or 0.0) <= self.due[1])
        )

    def to_plain(self) -> dict[str, Any]:
        """As values that JSON has, to travel between processes."""
        ids = None if self.ids is None else sorted(self.ids)
        return {"ids": ids, "queue": self.queue, "job": self.job, "retries": self.retries, "due": self.due}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Chosen":
        """What to_plain wrote."""
        ids = plain.get("ids")
        return cls(
            ids=None if ids is None else frozenset(map(str, ids)),
            queue=plain.get("queue"),
            job=plain.get("job"),
            retries=plain.get("retries"),
            due=tuple(plain["due"]) if plain.get("due") else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """Jobs that are due later, in the order of their instants."""

    messages: tuple[Message, ...]
    #: How many are meant in all.
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Altered:
    """A scheduled job that was cancelled, put into its queue or among the failed, or given another instant."""

    id: str
    job: str
    queue: str
    #: When it was due before, in Unix seconds.
    run_at: float


#: What may be done to scheduled jobs; "run" puts them into their queues now, "give up" puts those that wait to be
#: tried again among the failed, as if their last retry had been the last.
CANCEL, RUN, MOVE, GIVE_UP = "cancel", "run", "move", "give up"


#: Is told of jobs.
Tell = Callable[[Sequence[Message]], None]


def nobody(jobs: Sequence[Message]) -> None:
    """Be told, and do nothing."""


class Timetable(Protocol):
    """See the module's first lines."""

    async def keep_time(self, fired: Tell = nobody) -> None:
        """See to it, as long as the session lasts, that jobs come to their queues when they are due.

        `fired` is told of the jobs that recurring ones have published when their time came.
        Leads where nobody else does, and else stands by. Returns when the session is lost or closed; to be cancelled
        when the worker takes its leave. `leads` says whether it leads now.
        """

    @property
    def leads(self) -> bool:
        """Whether this session is the one that publishes what is due."""

    async def scheduled(self, chosen: Chosen, *, offset: int = 0, limit: int = 100) -> Scheduled:
        """Some of the jobs that are due later, soonest first."""

    async def alter_scheduled(
        self, chosen: Chosen, action: str, *, at: float | None = None, failed_per_queue: bool = False
    ) -> list[Altered]:
        """Cancel these jobs, put them into their queues now, have them run at another instant, or give them up.

        Returns which were there.

        A job that is not among them has come due before, or was not there: nothing was done to it.
        `at` is the instant for "move", in Unix seconds; one that has passed is as "run". `failed_per_queue` is for
        "give up": the failed jobs of every queue lie apart. It leaves alone what does not wait to be tried again.
        Returns once all is stored; interrupted, each job has been altered or not, or at most is there twice.
        """


def meant_by(chosen: Chosen, action: str) -> Chosen:
    """Which of the chosen an action is for."""
    return replace(chosen, retries=True) if action == GIVE_UP and chosen.retries is None else chosen


def _named(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)
