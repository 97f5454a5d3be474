"""What a broker does for queues whose jobs belong to several tenants: a part of the contract in palermo.broker.

A job that names a tenant waits apart from the others, and a worker is given jobs of all tenants that have some,
in turn or at random, by their shares: palermo.core.shares says how. Jobs of nobody are taken first.
On RabbitMQ whoever keeps the time deals them out, so without a worker that does they wait.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from palermo.core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One tenant of a queue, as a listing shows it."""

    name: str
    #: Its jobs that wait, and are not being handed to a worker yet.
    pending: int
    #: How much of the queue it has, beside others' 1.
    share: float = 1.0

    def to_plain(self) -> list[Any]:
        """As values that JSON has, to travel between processes."""
        return [self.name, self.pending, self.share]

    @classmethod
    def from_plain(cls, plain: Any) -> "Tenant":
        """What to_plain wrote."""
        name, pending, share = plain
        return cls(name=name, pending=pending, share=share)


class Tenants(Protocol):
    """See the module's first lines."""

    async def of(self, queue: str) -> list[Tenant]:
        """The tenants that have jobs waiting in the queue, those with most first.

        With thousands of them it may be what was counted some seconds ago. Empty for a queue that has none.
        """

    async def totals(self) -> Mapping[str, int]:
        """By queue, how many jobs wait that belong to tenants; queues without such may be left out."""

    async def clear(self, queue: str, tenant: str) -> int:
        """Remove the jobs of this tenant that wait in the queue; returns how many. Raises NotFound if it has none."""
