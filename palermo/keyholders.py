"""Keys of unique jobs and of limited ones for the inspector: who has which, and taking one away.

These are methods of palermo.inspector.Inspector, which names them.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from palermo.core.failure import printable
from palermo.core.keys import Key, Mode
from palermo.errors import NotFound
from palermo.rows import Row, instant, limit_row

if TYPE_CHECKING:
    from palermo.inspector import Inspector


def unique_keys(inspector: "Inspector") -> list[Row]:
    """All keys of unique jobs that something is known of, by name; of throttled and debounced jobs as well.

    A row is `key`, `id`, `job` and `queue` of the job that has it, `unique` ("until_start", "until_done", "seconds"),
    `state` ("waiting", "running"; "closed" for a key that no job has or gets, "kept" for a job that is kept until
    its time), `worker`, `since`, `until` (when it ends by itself), `run_at`, and `next`, the id of what runs after it.
    """
    found = inspector._ask(lambda broker: broker.keys.known(), again=True)
    return [row for row in map(_row, found) if row is not None]


def limits(inspector: "Inspector") -> list[Row]:
    """The keys of jobs with a limit or a rate of which any run or wait, by name.

    A row is `key`, `limit` and `rate` (None for none), `running`, and `waiting`: those that are put aside.
    """
    return [limit_row(info) for info in inspector._ask(lambda broker: broker.limits(), again=True)]


def free_keys(inspector: "Inspector", names: str | Iterable[str]) -> list[str]:
    """Take keys from the jobs that have them, whatever those do; which keys there were. Raises NotFound if none is.

    A job that waits takes its key again when it is started, if it is free then.
    """
    chosen = [names] if isinstance(names, str) else list(names)
    freed = inspector._ask(lambda broker: broker.keys.free(chosen)) if chosen else []
    if chosen and not freed:
        raise NotFound(f"no job has the key {chosen[0]!r}; `palermo unique list` shows those that are taken.")
    inspector._acted("free keys", count=len(freed), what=", ".join(freed[:20]))
    return freed


def stray_keys(inspector: "Inspector") -> list[Row]:
    """Keys whose jobs are nowhere, as other programs leave them that purge queues; looking takes a second or more.

    A row is `key`, `id`, `queue` and `since`.
    """
    found = inspector._ask(lambda broker: broker.keys.strays(), again=True)
    return [
        {
            "key": printable(one.key),
            "id": printable(one.id),
            "queue": printable(one.queue),
            "since": instant(one.since),
        }
        for one in found
    ]


def _row(key: Key) -> Row | None:
    holder, kept, closed = key.holder, key.next, key.closed
    row: Row = {
        "key": printable(key.name),
        **dict.fromkeys(("id", "job", "queue", "unique", "state", "worker", "since", "until", "run_at", "next")),
    }
    if holder is not None:
        return row | {
            "id": printable(holder.id),
            "job": printable(holder.job),
            "queue": printable(holder.queue),
            "unique": str(holder.mode),
            "state": "closed" if holder.mode is Mode.WINDOW else str(holder.phase),
            "worker": printable(holder.worker) or None,
            "since": instant(holder.since),
            "until": instant(holder.until),
            "run_at": instant(holder.run_at),
            "next": None if kept is None else printable(kept.message.id),
        }
    if kept is not None:
        message = kept.message
        named = {"id": printable(message.id), "job": printable(message.job), "queue": printable(message.queue)}
        return row | named | {"state": "kept", "run_at": instant(key.due)}
    if closed is not None:
        return row | {"id": printable(closed.id), "state": "closed", "until": instant(closed.until)}
    return None
