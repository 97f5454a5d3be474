"""Tenants: the part of a broker for queues whose jobs belong to several tenants.

A job that names a tenant waits apart from the others. A worker is given jobs of all tenants that have some,
in turn or at random, by their shares: palermo.core.fair_scheduling says how. Jobs without a tenant are taken first.
On RabbitMQ the leader deals the jobs out, so they wait while no worker leads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One tenant of a queue, as a listing shows it."""

    name: str
    #: Its jobs that wait and are not being handed to a worker yet.
    pending: int
    #: Its share of the queue, where others have 1.
    share: float = 1.0

    def to_plain(self) -> list[Any]:
        """As values that JSON has, to travel between processes."""
        return [self.name, self.pending, self.share]

    @classmethod
    def from_plain(cls, plain: Any) -> "Tenant":
        """The tenant that to_plain wrote."""
        name, pending, share = plain
        return cls(name=name, pending=pending, share=share)


class Tenants(Protocol):
    """The part of a broker that knows the tenants of its queues."""

    async def of(self, queue: str) -> list[Tenant]:
        """The tenants that have jobs waiting in the queue, those with most first.

        With thousands of tenants the counts may be some seconds old. Empty for a queue that has none.
        """

    async def totals(self) -> Mapping[str, int]:
        """By queue, how many waiting jobs belong to tenants; queues without such jobs may be left out."""

    async def clear(self, queue: str, tenant: str) -> int:
        """Remove the jobs of this tenant that wait in the queue; returns how many. Raises NotFound if it has none."""
