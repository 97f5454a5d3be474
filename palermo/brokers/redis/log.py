"""A log in a stream of Redis, bounded by age and size: the journal is one, and the kept events are another.

Each entry has its place by Redis's own time, so a later entry has a higher place, also after the log was deleted.
"""

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from palermo.brokers.features.steps import Step, text_of
from palermo.brokers.redis.store import Store

#: Appends between two checks of the bounds.
_TRIM_EVERY = 50

#: An id of a stream is milliseconds and a number; as one integer it has so many bits for the number.
_BITS = 20

#: A number as `repr` writes it; an entry of another program may have anything there.
_NUMBER = re.compile(rb"-?\d+(\.\d+)?(e[+-]?\d+)?")


class Entry(Struct, frozen=True):
    """One entry of a log."""

    place: int
    blob: bytes
    topic: str
    #: Unix seconds, as its writer gave them; 0 if it gave none.
    at: float


class Log:
    """One log, as one session writes and reads it."""

    def __init__(self, store: Store, name: str, *, age: float, most_bytes: int) -> None:
        self._store = store
        self.name = name
        self._age = age
        self._most_bytes = most_bytes
        self._appended = 0

    def appended(self, blob: bytes, now: float, topic: str = "", at: float = 0.0) -> list[Step]:
        """The changes that append an entry, and now and then remove old ones."""
        trim = self._appended % _TRIM_EVERY == 0
        self._appended += 1
        steps: list[Step] = [("append", self.name, blob, topic, repr(at))]
        if trim:
            steps.append(("trim", self.name, str(max(0, int((now - self._age) * 1_000))), self._most_bytes))
        return steps

    async def last(self) -> int:
        """The place of the newest entry; 0 if there is none."""
        found = await self._store.call("XREVRANGE", self._store.key(self.name), "+", "-", "COUNT", 1)
        return place_of(found[0][0]) if found else 0

    async def newest(self, up_to: int, count: int) -> int | None:
        """The place of the first of the last `count` entries up to a place; None if there is none."""
        found = await self._store.run("look", "newest", self.name, id_of(up_to), count)
        return place_of(found) if found else None

    async def first(self, from_place: int) -> int | None:
        """The place of the first entry from this place on; None if there is none."""
        found = await self._store.call("XRANGE", self._store.key(self.name), id_of(from_place), "+", "COUNT", 1)
        return place_of(found[0][0]) if found else None

    async def read(self, from_place: int, to_place: int | None, most: int) -> Sequence[Entry]:
        """The first entries from one place to another, both included."""
        end = "+" if to_place is None else id_of(to_place)
        found = await self._store.call("XRANGE", self._store.key(self.name), id_of(from_place), end, "COUNT", most)
        return list(_entries(found))

    async def size(self) -> int:
        """How many entries there are."""
        return int(await self._store.call("XLEN", self._store.key(self.name)))


def place_at(instant: float) -> int:
    """The first place that an entry may have that is appended at this instant, in Unix seconds."""
    return max(0, int(instant * 1_000)) << _BITS


def _entries(found: Sequence[tuple[bytes, Sequence[bytes]]]) -> Iterator[Entry]:
    for id, fields in found:
        values = dict(zip(fields[::2], fields[1::2], strict=True))
        at = values.get(b"at", b"")
        yield Entry(
            place_of(id),
            values.get(b"blob", b""),
            text_of(values.get(b"topic", b"")),
            float(at) if _NUMBER.fullmatch(at) else 0.0,
        )


def place_of(id: bytes) -> int:
    """The place of an entry with this id in Redis."""
    milliseconds, _, number = id.partition(b"-")
    return (int(milliseconds) << _BITS) + int(number)


def id_of(place: int) -> str:
    """The id in Redis of an entry at this place."""
    return f"{place >> _BITS}-{place & ((1 << _BITS) - 1)}"
