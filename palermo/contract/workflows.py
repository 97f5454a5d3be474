"""Workflows as a broker stores them."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from palermo.core.lifecycle import StoredResult
from palermo.core.workflow_rules import Condition


class MembersInfo(Struct, frozen=True, array_like=True):
    """How many of a map's members have ended, have failed and are in progress, and their total number."""

    over: int
    failed: int
    out: int
    total: int


class StepInfo(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step, as a listing shows it."""

    #: Its phase, see palermo.core.workflow_rules.Phase.
    state: str
    #: The steps that it waits for, with the required results.
    after: tuple[Condition, ...] = ()
    #: Only for a signal, which has no job: True, and when it times out, in Unix seconds.
    signal: bool = False
    until: float | None = None
    #: Only for a map.
    members: MembersInfo | None = None
    #: The wire name of its job, and its queue.
    job: str = ""
    queue: str = ""
    #: Its return value, if a later step uses it and it is short.
    output: StoredResult | None = None


class WorkflowInfo(Struct, frozen=True, kw_only=True):
    """One workflow, as a listing shows it."""

    id: str
    #: The wire name of its job, and its queue.
    job: str
    queue: str
    #: "running" or "failed"; from the journal also "done" or "cancelled".
    state: str
    #: When it added its first steps, and when it ended, in Unix seconds.
    began_at: float
    ended_at: float | None = None
    #: The numbers of its done, failed and all steps. Each member of a map counts as a step, without the steps that it
    #: added. Steps that any other step added count instead of it.
    done: int
    failed: int
    total: int
    #: Number of its jobs in queues or running, and of awaited signals.
    jobs: int = 0
    #: The names of these signals.
    waits_for: tuple[str, ...] = ()
    #: The names of the signals that were sent to it.
    sent: tuple[str, ...] = ()
    #: The steps by path, in the order in which they were added. The journal has only the first ones of a large
    #: workflow. Empty in a list of workflows.
    steps: Mapping[str, StepInfo] = {}
    #: Number of steps that were left out.
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
        """All running and failed workflows, oldest first, without their steps."""

    async def find(self, id: str) -> WorkflowInfo | None:
        """The workflow with this id and its steps, with their jobs and outputs.

        None if it doesn't exist, or if it has ended without failing.
        """

    async def signal(self, id: str, name: str, value: StoredResult) -> None:
        """Send a signal to a workflow; a second one with the same name changes nothing.

        Raises NotFound for a workflow that has not added steps yet, or has ended.
        """

    async def failed_jobs(self, id: str) -> list[str]:
        """The ids of the failed jobs of a workflow; empty if it is unknown."""

    async def next_due(self) -> float | None:
        """The time at which a workflow's next timeout was due; None if none is overdue."""
