"""The filters of finished jobs and of actions, for the pages, the API and the commands."""

from collections.abc import Mapping

from msgspec import Struct

from palermo.core.conditions import check_conditions
from palermo.core.journal_records import RecordKind
from palermo.errors import OptionInvalid

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


class HistoryFilter(Struct, frozen=True, kw_only=True):
    """A filter of finished jobs, which must match all its fields; an empty filter matches all that are final.

    A name is matched as `palermo.core.text.fits` says. Raises OptionInvalid for an unknown state and for a blank text.
    """

    queue: str | None = None
    #: Its wire name.
    job: str | None = None
    #: The id of the worker that ran it.
    worker: str | None = None
    #: The dotted name of its error's class.
    error: str | None = None
    #: One of STATES. "retrying" are runs that failed and were to be tried again.
    state: str | None = None
    #: Text, in any letter case, at the beginning of its id, or in its name, its error, the reason why it was
    #: discarded, or the arguments that the journal recorded (their first 500 characters, as they are shown).
    text: str | None = None
    #: Unix seconds: it ended at `since` or later; and at `until` or before.
    since: float | None = None
    until: float | None = None
    #: Seconds: it ran for `longer` or more; and for `shorter` or less. A job that did not run matches neither.
    longer: float | None = None
    shorter: float | None = None

    def __post_init__(self) -> None:
        check_conditions(self)
        if self.state is not None and self.state not in STATES:
            raise OptionInvalid(f"there is no state {self.state[:40]!r} of finished jobs: {', '.join(STATES)}.")


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


#: The empty filters.
FINISHED, ANYTHING = HistoryFilter(), AuditFilter()
