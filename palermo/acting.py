"""Who acts on a broker, and what is written into the journal of it."""

import getpass
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from palermo.core.journal import Kind
from palermo.core.values import dataclass

if TYPE_CHECKING:
    from palermo.client import Client

#: Ids in one record.
_BATCH = 1_000


@dataclass(frozen=True, slots=True)
class Actor:
    """Somebody who does something to queues, jobs or workers."""

    #: `user@host`, or the name of a user of the web pages.
    name: str
    #: By which way: "python", "cli" or "web".
    source: str

    @classmethod
    def here(cls, source: str) -> "Actor":
        """Whoever this process belongs to."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a container's user may have no name
            user = "?"
        return cls(f"{user}@{socket.gethostname()}", source)


def write_down(
    client: "Client",
    actor: Actor,
    action: str,
    *,
    outcome: str = "done",
    queue: str | None = None,
    ids: Sequence[str] | None = None,
    count: int | None = None,
    what: str | None = None,
) -> None:
    """Write into the journal that the actor did this, or that it was `refused` or has `failed`.

    `ids` are the jobs it was about, `count` how many (that of the ids unless given), `what` anything else. Nothing is
    raised: what cannot be written does not undo what was done.
    """
    fields: dict[str, object] = {"action": action, "by": actor.name, "source": actor.source, "outcome": outcome}
    more = {"queue": queue, "what": what, "count": len(ids) if count is None and ids is not None else count}
    fields |= {name: value for name, value in more.items() if value is not None}
    if ids is None:
        client.write_down(Kind.ACTION, fields)
        return
    for start in range(0, len(ids), _BATCH):
        part = list(ids[start : start + _BATCH])
        client.write_down(Kind.ACTION, {**fields, "ids": part, **({"part": start // _BATCH} if start else {})})
    if not ids:
        client.write_down(Kind.ACTION, fields)
