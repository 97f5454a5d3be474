"""The origin of a job: its parent, its event or its recurring job; its children, and the jobs that ran it again."""

from collections.abc import Sequence
from dataclasses import dataclass

from palermo.contract.recurring_entries import RECURRING
from palermo.contract.rows import Row, iso_instant
from palermo.core.failure import printable
from palermo.core.journal_records import RecordKind
from palermo.core.message import EVENT_ID, Message
from palermo.history.index import Index


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What made a job; a field is empty if it is not that, or not known."""

    #: The name of the recurring job.
    recurring: str = ""
    #: The topic and the id of the event.
    topic: str = ""
    event: str = ""
    #: The id of the job that enqueued it, or published its event, while it ran.
    parent: str = ""


def origin_of(message: Message | None, row: Row | None, life: Sequence[Row]) -> Origin:
    """The origin of a job, from its headers, from its row, and from the journal's records of it."""
    extra = {} if message is None else message.extra
    fired = next((step.get("name") for step in life if step["kind"] == RecordKind.FIRED), None)
    name = extra.get(RECURRING) or fired
    parent = (row or {}).get("parent") or next((step["parent"] for step in life if "parent" in step), "")
    return Origin(
        recurring=printable(name) if isinstance(name, str) else "",
        topic=printable(message.topic) if message is not None else "",
        event=printable(str(extra[EVENT_ID])) if message is not None and message.topic else "",
        parent=printable(parent) if isinstance(parent, str) else "",
    )


def children_of(index: Index, id: str, *, limit: int) -> list[Row]:
    """The jobs that a job enqueued, each as the journal's newest record of it tells, the newest first."""
    return [
        {
            "id": each.id,
            "job": each.job or None,
            "queue": each.queue,
            "state": each.state or "enqueued",
            "at": iso_instant(each.at),
        }
        for each in index.children(id, limit=limit)
    ]


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
