"""The origin of a job, its event or its recurring job, and the jobs that ran it again."""

from collections.abc import Sequence
from dataclasses import dataclass

from palermo.contract.recurring_entries import RECURRING
from palermo.contract.rows import Row
from palermo.core.failure import printable
from palermo.core.journal_records import RecordKind
from palermo.core.message import EVENT_ID, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What made a job; a field is empty if it is not that, or not known."""

    #: The name of the recurring job.
    recurring: str = ""
    #: The topic and the id of the event.
    topic: str = ""
    event: str = ""


def origin_of(message: Message | None, life: Sequence[Row]) -> Origin:
    """The origin of a job, from its headers and from the journal's records of it."""
    extra = {} if message is None else message.extra
    fired = next((row.get("name") for row in life if row["kind"] == RecordKind.FIRED), None)
    name = extra.get(RECURRING) or fired
    return Origin(
        recurring=printable(name) if isinstance(name, str) else "",
        topic=printable(message.topic) if message is not None else "",
        event=printable(str(extra[EVENT_ID])) if message is not None and message.topic else "",
    )


def again_of(id: str, life: Sequence[Row]) -> tuple[str, list[str]]:
    """The job that this one runs again, "" if it runs none, and the jobs that run this one again."""
    before, after = "", list[str]()
    for row in life:
        if row["kind"] != "action" or row["action"] != "run again" or row["outcome"] != "done":
            continue
        old, _, new = str(row["what"]).rpartition(" as ")
        if new == id:
            before = old
        elif old == id:
            after.append(new)
    return before, after
