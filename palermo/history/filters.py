"""Which finished jobs and which actions are meant: the filters of the pages, the API and the commands."""

from collections.abc import Mapping
from dataclasses import fields

from palermo.core.journal import Kind
from palermo.core.values import dataclass
from palermo.errors import OptionInvalid

#: How a run of a job ended, as listings call it, by the kind of the record that tells it. The first four are final.
STATES: Mapping[str, Kind] = {
    "done": Kind.SUCCEEDED,
    "failed": Kind.FAILED,
    "discarded": Kind.DISCARDED,
    "cancelled": Kind.CANCELLED,
    "retrying": Kind.RETRIED,
}

#: What is listed unless a state is asked for: runs after which the job was over.
FINAL = ("done", "failed", "discarded", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFilter:
    """What a finished job must be, all of it at once; a filter that asks for nothing matches all that are final.

    Names may hold `*`, `?` and `[…]`. Raises OptionInvalid for a state that is none.
    """

    queue: str | None = None
    #: Its wire name.
    job: str | None = None
    #: One of STATES. "retrying" are runs that failed and were to be tried again.
    state: str | None = None
    #: Text, in any case of letters, in its id, its name, its error or why it was discarded.
    text: str | None = None
    #: Unix seconds: it ended at this instant or later; and at this instant or before.
    since: float | None = None
    until: float | None = None
    #: Seconds: it ran so long or longer; and so long or shorter. What did not run is neither.
    longer: float | None = None
    shorter: float | None = None

    def __post_init__(self) -> None:
        if self.state is not None and self.state not in STATES:
            raise OptionInvalid(f"there is no state {self.state[:40]!r} of finished jobs: {', '.join(STATES)}.")

    def __str__(self) -> str:
        asked = ((each.name, getattr(self, each.name)) for each in fields(self))
        return " ".join(f"{name}={value!r}" for name, value in asked if value is not None) or "everything"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """What an action must be, all of it at once; a filter that asks for nothing matches every action.

    Names may hold `*`, `?` and `[…]`.
    """

    #: Who did it.
    by: str | None = None
    action: str | None = None
    queue: str | None = None
    #: Text, in any case of letters, in the ids of its jobs, or in what else is told of it.
    text: str | None = None
    #: Unix seconds: it was done at this instant or later; and at this instant or before.
    since: float | None = None
    until: float | None = None


#: The filters that ask for nothing.
FINISHED, ANYTHING = HistoryFilter(), AuditFilter()
