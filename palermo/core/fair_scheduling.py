"""The fair scheduler of one queue's tenants.

Every tenant with waiting jobs has a position. The tenant with the lowest position is served, and advances by a stride.
In the order "turn" the stride is 1 / share, so a tenant with share 2 is served twice as often as one with share 1
(stride scheduling). In the order "random" the stride is drawn from the exponential distribution with that mean, which
makes each pick an independent random draw weighted by shares.

The number of a tenant's jobs makes no difference. Random numbers are arguments.
"""

import heapq
from collections.abc import Callable
from itertools import count
from math import log1p

#: The orders in which tenants are served; the first is the default.
TURN, RANDOM = TENANT_ORDERS = ("turn", "random")

#: The smallest and the largest share; the default is 1.
LEAST_SHARE, MOST_SHARE = 0.001, 1_000.0

#: Maximum size of a tenant's name in bytes of UTF-8.
MAX_TENANT_BYTES = 255


def stride(share: float, order: str, chance: float) -> float:
    """The distance by which a tenant advances when it is served; `chance` is from 0 to below 1."""
    share = min(max(share, LEAST_SHARE), MOST_SHARE)
    return 1.0 / share if order == TURN else -log1p(-chance) / share


def is_tenant(name: object) -> bool:
    """Whether this is a valid tenant name: text of 1 to 255 bytes without surrounding spaces."""
    if not isinstance(name, str) or name != name.strip():
        return False
    try:
        return 1 <= len(name.encode()) <= MAX_TENANT_BYTES
    except UnicodeEncodeError:
        return False


class StrideScheduler:
    """The tenants with waiting jobs, and the tenant whose turn is next."""

    def __init__(self, order: str, chance: Callable[[], float]) -> None:
        self._order = order
        self._chance = chance
        #: The position of the tenant that was served last; a tenant that joins starts there.
        self._now = 0.0
        self._heap: list[tuple[float, int, str]] = []
        self._marks: dict[str, tuple[float, int]] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._marks)

    def __contains__(self, tenant: str) -> bool:
        return tenant in self._marks

    def join(self, tenant: str, share: float = 1.0) -> None:
        """Add a tenant with jobs. Tenants that already wait, with the same share, are served once before it.

        Does nothing if the tenant is already there.
        """
        if tenant not in self._marks:
            self._put(tenant, self._now + self._stride(share))

    def leave(self, tenant: str) -> None:
        """Remove a tenant without jobs."""
        self._marks.pop(tenant, None)

    def next(self) -> str | None:
        """The tenant whose turn it is; None if no tenant waits. It keeps the turn until `served`."""
        while self._heap:
            mark, number, tenant = self._heap[0]
            if self._marks.get(tenant) == (mark, number):
                return tenant
            heapq.heappop(self._heap)
        self._now = 0.0
        return None

    def coming(self, count: int, share: Callable[[str], float]) -> list[str]:
        """The next tenants in order, assuming that none joins or leaves and that strides are average.

        Changes nothing.
        """
        turns, found, again = list[str](), list[tuple[float, int, str]](), list[tuple[float, int, str]]()
        while len(turns) < count and (self._heap or again):
            is_first = bool(self._heap) and (not again or self._heap[0] < again[0])
            mark, number, tenant = heapq.heappop(self._heap if is_first else again)
            if is_first:
                if self._marks.get(tenant) != (mark, number):
                    continue
                found.append((mark, number, tenant))
            turns.append(tenant)
            heapq.heappush(again, (mark + stride(share(tenant), TURN, 0.0), next(self._numbers), tenant))
        for one in found:
            heapq.heappush(self._heap, one)
        return turns

    def served(self, tenant: str, share: float = 1.0) -> None:
        """Record that a tenant has had its turn, and move it back among the others."""
        mark, _ = self._marks[tenant]
        self._now = max(self._now, mark)
        self._put(tenant, mark + self._stride(share))

    def _stride(self, share: float) -> float:
        return stride(share, self._order, 0.0 if self._order == TURN else self._chance())

    def _put(self, tenant: str, mark: float) -> None:
        place = (mark, next(self._numbers))
        self._marks[tenant] = place
        heapq.heappush(self._heap, (*place, tenant))
