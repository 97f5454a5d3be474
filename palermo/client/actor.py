"""Actors: the users and programs that change a broker's contents, and the journal records of their actions."""

import getpass
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from palermo.core.journal_records import RecordKind

if TYPE_CHECKING:
    from palermo.client.client import Client

#: Recorded as the detail of an action that changed the arguments of jobs.
OTHER_ARGUMENTS = "with other arguments"

#: Maximum number of ids per record.
_BATCH = 1_000


class Actor(Struct, frozen=True):
    """A user or program that acts on queues, jobs or workers."""

    #: `user@host`, or the user name in the web UI.
    name: str
    #: The interface it used: "python", "cli" or "web".
    source: str

    @classmethod
    def here(cls, source: str) -> "Actor":
        """Return the user who owns this process."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a container's user may have no name
            user = "?"
        return cls(f"{user}@{socket.gethostname()}", source)


def record_action(
    client: "Client",
    actor: Actor,
    action: str,
    *,
    outcome: str = "done",
    queue: str | None = None,
    ids: Sequence[str] | None = None,
    count: int | None = None,
    what: str | None = None,
    at: float | None = None,
) -> None:
    """Record an action in the journal. `outcome` is "done", "refused" or "failed".

    `ids` are the affected jobs, `count` their number (default: the number of ids), and `what` any other detail. `at` is
    the start time in Unix seconds (default: now). Never raises, because the action has been performed even if its
    record can't be written.
    """
    fields: dict[str, object] = {"action": action, "by": actor.name, "source": actor.source, "outcome": outcome}
    more = {
        "at": None if at is None else round(at, 3),
        "queue": queue,
        "what": what,
        "count": len(ids) if count is None and ids is not None else count,
    }
    fields |= {name: value for name, value in more.items() if value is not None}
    if ids is None:
        client.write_record(RecordKind.ACTION, fields)
        return
    for start in range(0, len(ids), _BATCH):
        part = list(ids[start : start + _BATCH])
        client.write_record(RecordKind.ACTION, {**fields, "ids": part, **({"part": start // _BATCH} if start else {})})
    if not ids:
        client.write_record(RecordKind.ACTION, fields)
