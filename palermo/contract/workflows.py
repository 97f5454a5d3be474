"""Workflows as a broker has them."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from palermo.core.lifecycle import StoredResult
from palermo.core.workflow_rules import Condition


class MembersInfo(Struct, frozen=True, array_like=True):
    """The numbers of a map's members: those that have ended, those of them that failed, those that are out, and all."""

    over: int
    failed: int
    out: int
    total: int


class StepInfo(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step, as a listing shows it."""

    #: Its phase: see palermo.core.workflow_rules.Phase.
    state: str
    #: The steps that it comes after, and how these must end.
    after: tuple[Condition, ...] = ()
    #: Whether it has no job and waits for its signal; and until when, in Unix seconds.
    signal: bool = False
    until: float | None = None
    #: Of a map.
    members: MembersInfo | None = None
    #: The wire name of its job, and its queue.
    job: str = ""
    queue: str = ""
    #: What it returned, if a later step takes it and it is short.
    output: StoredResult | None = None


class WorkflowInfo(Struct, frozen=True, kw_only=True):
    """One workflow, as a listing shows it."""

    id: str
    #: The wire name of its job, and its queue.
    job: str
    queue: str
    #: "running" or "failed"; "done" or "cancelled" only of one that the journal has.
    state: str
    #: When it added its first steps, and when it ended, in Unix seconds.
    began_at: float
    ended_at: float | None = None
    #: The numbers of its own steps that are done, that failed, and of all: without those that steps added.
    done: int
    failed: int
    total: int
    #: The number of its jobs that wait in queues or run, and the signals that it waits for.
    jobs: int = 0
    waits_for: tuple[str, ...] = ()
    #: The steps by path, in the order in which they were added; the journal has the first ones of a large workflow.
    #: Empty in a list of all workflows.
    steps: Mapping[str, StepInfo] = {}
    #: How many more steps there were.
    left_out: int = 0

    @property
    def cleaned_up(self) -> list[str]:
        """The steps for `when="failed"` that were released."""
        return [
            path
            for path, step in self.steps.items()
            if step.state not in ("waiting", "skipped") and any(one.when == "failed" for one in step.after)
        ]


class Workflows(Protocol):
    """The part of a broker that keeps workflows, `Broker.workflows`. All methods raise BrokerUnavailable."""

    async def all(self) -> list[WorkflowInfo]:
        """All workflows that run or have failed, oldest first, without their steps."""

    async def find(self, id: str) -> WorkflowInfo | None:
        """The workflow with this id and its steps, with their jobs and outputs.

        None if there is none, or if it is over and has not failed.
        """

    async def signal(self, id: str, name: str, value: StoredResult) -> None:
        """Send a signal to a workflow; a second one of the same name changes nothing.

        Raises NotFound for a workflow that has not added steps yet, or is over.
        """

    async def failed_jobs(self, id: str) -> list[str]:
        """The ids of the failed jobs of a workflow; empty for one that is not known."""

    async def next_due(self) -> float | None:
        """When time changes a workflow next, if that is by now; None otherwise."""
