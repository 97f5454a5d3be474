"""Where jobs run: the protocol that the worker's loop knows, and that every kind of slot keeps."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Protocol

from palermo.core.lifecycle import RunResult
from palermo.core.message import Message
from palermo.core.values import dataclass
from palermo.entries import Entry
from palermo.events import Subscription
from palermo.worker.reporting import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """What the user's modules registered."""

    jobs: tuple[str, ...]
    #: The queue selection that goes with them.
    queues: tuple[str, ...]
    #: The kinds of worker hook that there are.
    hooks: frozenset[str]
    #: By job, the seconds that a run may take where its message does not say.
    timeouts: Mapping[str, float] = field(default_factory=dict)
    #: By job, the seconds that a run may keep its claim where its message does not say.
    locks: Mapping[str, float] = field(default_factory=dict)
    #: The queues for which a job with a priority is declared.
    prioritized: frozenset[str] = frozenset()
    #: By job that takes several at once, how many at most, and the seconds that it waits for them.
    batches: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    #: Jobs that recur, as they are put on the broker.
    recurring: tuple[Entry, ...] = ()
    #: The modules that may have declared such jobs.
    modules: tuple[str, ...] = ()
    #: The groups that subscribe to events, and whether from the start.
    subscriptions: tuple[tuple[Subscription, bool], ...] = ()


class Unstartable(Exception):
    """The worker cannot start; the text is for the user."""


#: Is told what the job of a slot reports of itself while it runs.
OnReport = Callable[[int, Report], None]


def unheard(slot: int, report: Report) -> None:
    """Nobody listens."""


class Runner(Protocol):
    """Where jobs run. A slot, numbered from 1, runs one at a time."""

    on_report: OnReport

    @property
    def gone(self) -> asyncio.Event:
        """Set when it cannot run jobs any more."""

    @property
    def ending(self) -> str:
        """How it came to that, in words."""

    @property
    def template(self) -> int:
        """The pid of the child that imports the user's modules and forks the others."""

    async def start(self) -> Registered:
        """Wait for the user's modules. Raises Unstartable."""

    async def prepare(self, slot: int) -> None:
        """Have the slot ready, so that its first job need not wait. Not to be cancelled."""

    async def run(self, slot: int, message: Message) -> RunResult:
        """Run one job, with its companions, to its end; raises nothing but what a bug of ours would."""

    def begin(self, slot: int, message: Message, done: Callable[[RunResult], None]) -> bool:
        """Begin to run one job at once, if the slot is ready; `done` is called as it has ended, as `run` would return.

        Not called before this returns. False if it is to be run by `run`.
        """

    async def hook(self, name: str) -> None:
        """Run the worker hooks of this name; returns when they have."""

    def drain(self) -> None:
        """Start no more slots that cannot be started at once."""

    async def stack(self, slot: int) -> str:
        """What the job in this slot is doing, without stopping it; "" if it does not say."""

    def kill_jobs(self) -> None:
        """Kill every job that runs; each comes back as Raised, and its slot is started anew."""

    def cancel(self, slot: int) -> None:
        """Raise JobCancelled in the job of this slot, and end it by force after the timeout's grace.

        It comes back as Cancelled, whatever it raises. Does nothing to an idle slot.
        """

    def terminate(self) -> None:
        """Raise JobTerminated in every job that runs; whatever else it raises, it comes back as Interrupted."""

    def kill(self) -> None:
        """Kill everything at once; the jobs that ran come back as Interrupted."""

    async def close(self) -> None:
        """End all processes, which are idle by now."""
