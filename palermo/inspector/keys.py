"""`inspector.keys`: list the keys of unique and of limited jobs, and free unique keys."""

from collections.abc import Iterable
from typing import Any, cast

from palermo.contract.row_types import KeyRow, LimitRow
from palermo.contract.rows import Listing, Row, iso_instant, limit_row
from palermo.contract.unique_jobs import UniqueJob
from palermo.core.failure import printable
from palermo.core.unique_keys import Key, Mode
from palermo.errors import NotFound
from palermo.inspector.context import Context


def _row(key: Key) -> KeyRow:
    holder, kept, closed = key.holder, key.next, key.closed
    row: dict[str, Any] = {
        "key": printable(key.name),
        **dict.fromkeys(("id", "job", "queue", "unique", "state", "worker", "since", "until", "run_at", "next")),
    }
    if holder is not None:
        row |= {
            "id": printable(holder.id),
            "job": printable(holder.job),
            "queue": printable(holder.queue),
            "unique": str(holder.mode),
            "state": "closed" if holder.mode is Mode.WINDOW else str(holder.phase),
            "worker": printable(holder.worker) or None,
            "since": iso_instant(holder.since),
            "until": iso_instant(holder.until),
            "run_at": iso_instant(holder.run_at),
            "next": None if kept is None else printable(kept.message.id),
        }
    elif kept is not None:
        message = kept.message
        row |= {"id": printable(message.id), "job": printable(message.job), "queue": printable(message.queue)}
        row |= {"state": "kept", "run_at": iso_instant(key.due)}
    else:
        assert closed is not None
        row |= {"id": printable(closed.id), "state": "closed", "until": iso_instant(closed.until)}
    return cast(KeyRow, row)


class Keys(Context):
    """The keys of unique and of limited jobs."""

    def page(self, text: str, *, offset: int, limit: int) -> Listing[KeyRow]:
        """List the keys whose name, job name or job id contains this text."""
        page = self._ask(lambda broker: broker.keys.page(text, offset=offset, limit=limit), again=True)
        return Listing([_row(key) for key in page.keys], page.total)

    def find(self, name: str) -> Key | None:
        """Return the key with this name, or None if it isn't in use."""
        return self._ask(lambda broker: broker.keys.find(name), again=True)

    def announced(self) -> list[UniqueJob]:
        """Return the unique jobs that workers and programs have announced."""
        return list(self._ask(lambda broker: broker.keys.announced(), again=True).values())

    def limits(self) -> list[LimitRow]:
        """List the limit and rate keys of running and waiting jobs, by name."""
        return [limit_row(info) for info in self._ask(lambda broker: broker.limits(), again=True)]

    def free(self, names: str | Iterable[str]) -> list[str]:
        """Free keys, even while the jobs that hold them run. Returns those that were in use; raises NotFound if none
        was.

        When a waiting job starts, it takes its key again if that is free.
        """
        chosen = [names] if isinstance(names, str) else list(names)
        freed = self._ask(lambda broker: broker.keys.free(chosen)) if chosen else []
        if chosen and not freed:
            raise NotFound(f"no job has the key {chosen[0]!r}; `palermo unique list` lists the keys in use.")
        self._record("free keys", count=len(freed), what=", ".join(freed[:20]))
        return freed

    def orphaned(self) -> list[Row]:
        """List keys whose jobs no longer exist, for example because another program purged the queue.

        Takes a second or more. A row has `key`, `id`, `queue` and `since`.
        """
        found = self._ask(lambda broker: broker.keys.orphaned(), again=True)
        return [
            {
                "key": printable(one.key),
                "id": printable(one.id),
                "queue": printable(one.queue),
                "since": iso_instant(one.since),
            }
            for one in found
        ]

    def list(self) -> list[KeyRow]:
        """List all keys in use by unique, throttled and debounced jobs, by name."""
        return [_row(key) for key in self._ask(lambda broker: broker.keys.known(), again=True)]
