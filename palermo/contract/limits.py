"""Limited keys as brokers store them."""

from typing import Any

from msgspec import Struct, convert

from palermo.contract.stored_records import read_record
from palermo.core.limits import RateState


class StoredLimit(Struct, frozen=True, kw_only=True):
    """A key of limited jobs: the latest limit and rate that a job declared for it, and the state of its rate."""

    limit: int | None = None
    #: As the user wrote it; "" for none.
    rate: str = ""
    next: float = 0.0
    free: float = 0.0
    again: float = 0.0

    @property
    def state(self) -> RateState:
        return RateState(next=self.next, free=self.free, again=self.again)

    def turns(self, now: float) -> int:
        """Number of reserved runs from now on."""
        return self.state.turns(self.rate, now)


def stored_limit(key: str | bytes, stored: Any) -> StoredLimit:
    """The limit key in a stored text; an empty one, with a warning, if it cannot be read."""
    return (
        read_record(_checked, stored, what="a limited key", name=key, remedy="its rate starts from zero")
        or StoredLimit()
    )


def _checked(plain: Any) -> StoredLimit:
    found = convert(plain, StoredLimit)
    found.turns(0.0)  # raises for an invalid rate, and for instants that are not numbers
    return found
