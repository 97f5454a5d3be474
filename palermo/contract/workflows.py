"""Workflows as a broker has them."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from palermo.core.lifecycle import StoredResult


class WorkflowInfo(Struct, frozen=True, kw_only=True):
    """One workflow, as a listing shows it."""

    id: str
    #: The wire name of its job, and its queue.
    job: str
    queue: str
    #: "running" or "failed": the journal has those that are done or cancelled.
    state: str
    #: When it added its first steps, in Unix seconds.
    began_at: float
    #: The phase of each step, in the order in which they were added.
    steps: Mapping[str, str]
    #: By map, how many of its members are over, how many of these failed, and how many there are.
    members: Mapping[str, tuple[int, int, int]]
    #: The signals that it waits for, and the steps that have failed.
    waits_for: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    #: The steps for `when="failed"` that were released.
    cleaned_up: tuple[str, ...] = ()


class Workflows(Protocol):
    """The part of a broker that keeps workflows, `Broker.workflows`. All methods raise BrokerUnavailable."""

    async def all(self) -> list[WorkflowInfo]:
        """All workflows that run or have failed, oldest first."""

    async def find(self, id: str) -> WorkflowInfo | None:
        """The workflow with this id; None if there is none, or if it is over and has not failed."""

    async def signal(self, id: str, name: str, value: StoredResult) -> None:
        """Send a signal to a workflow; a second one of the same name changes nothing.

        Raises NotFound for a workflow that has not added steps yet, or is over.
        """

    async def failed_jobs(self, id: str) -> list[str]:
        """The ids of the failed jobs of a workflow; empty for one that is not known."""

    async def next_due(self) -> float | None:
        """When time changes a workflow next, if that is by now; None otherwise."""
