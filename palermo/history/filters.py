"""The states of finished jobs, and the filter of actions, for the pages, the API and the commands."""

from collections.abc import Mapping

from msgspec import Struct

from palermo.core.conditions import check_conditions
from palermo.core.journal_records import RecordKind

#: The states of ended runs, as listings name them, each with the kind of its record. The first four are final.
STATES: Mapping[str, RecordKind] = {
    "done": RecordKind.SUCCEEDED,
    "failed": RecordKind.FAILED,
    "discarded": RecordKind.DISCARDED,
    "cancelled": RecordKind.CANCELLED,
    "retrying": RecordKind.RETRIED,
}

#: The states that are listed unless one is asked for: runs after which the job was over.
FINAL = ("done", "failed", "discarded", "cancelled")


class AuditFilter(Struct, frozen=True, kw_only=True):
    """A filter of actions, which must match all its fields; an empty filter matches every action.

    A name is matched as `palermo.core.text.fits` says. Raises OptionInvalid for a blank text.
    """

    #: Who did it.
    by: str | None = None
    action: str | None = None
    queue: str | None = None
    #: Text, in any case of letters, in the ids of its jobs, or in its other fields.
    text: str | None = None
    #: Unix seconds: it was done at `since` or later; and at `until` or before.
    since: float | None = None
    until: float | None = None

    def __post_init__(self) -> None:
        check_conditions(self)


#: The empty filter.
ANYTHING = AuditFilter()
