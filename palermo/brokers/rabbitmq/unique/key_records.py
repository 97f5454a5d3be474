"""The records of the key log as values: what leaders and workers write, and what all records say together.

Law: the records of a log say the same in any order, and however often each is read. A leader may read records again
that an earlier leader had replaced already.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

from msgspec import Struct, convert

from palermo.contract.stored_records import UNREADABLE
from palermo.core.message import Message
from palermo.core.unique_keys import Key, message_from_plain
from palermo.core.unique_rules import RunOutcome

#: The format of the records. Readers ignore fields that they do not know.
FORMAT = 1

#: The keys in one part of a snapshot, and the bytes of bodies beyond which no key is added to it.
_PART, _PART_BYTES = 200, 1_048_576


class _Record(Struct, frozen=True, kw_only=True):
    def to_plain(self) -> dict[str, Any]:
        """The record as values that JSON has, without fields that are None."""
        plain = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in plain.items() if value is not None}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """The record that to_plain wrote. Raises ValueError for anything else."""
        return convert(plain, cls)


class RunEnd(_Record, frozen=True, kw_only=True):
    """The end of a run, as a worker writes it before it acknowledges the job."""

    key: str
    id: str
    how: RunOutcome
    #: The serial and starts that the answer to its start gave; None if the job needed no such answer.
    serial: int | None = None
    starts: int | None = None
    #: When the job runs again, and when this was written, in Unix seconds.
    run_at: float | None = None
    at: float | None = None


class Batch(_Record, frozen=True, kw_only=True):
    """A batch of key states, as the leader writes it; or a part of one, if it has several messages with one number."""

    n: int
    #: The leader that wrote it.
    by: str
    #: The states of keys. Of several states of one key the one with the highest number counts. None is a free key.
    keys: dict[str, Any]
    #: The jobs that the batch lets into their queues. They are published behind it.
    jobs: list[Any]
    #: A number and ids: the jobs of all batches up to that number are stored, except those with these ids, which their
    #: queues refused. The batch with the highest number that has this counts.
    stored: tuple[int, list[str]] | None = None
    #: Its place among the parts of a snapshot of all keys, and their number. Once all parts are stored, batches with a
    #: lower number say nothing about keys.
    all: tuple[int, int] | None = None
    format: int = FORMAT


class LogState:
    """What the records of a log say together.

    Each key is decoded when it is taken, and forgotten with the next batch that has it; a job as soon as a batch says
    that it is stored. The texts of a log of 50,000 keys, jobs included, measure 100 MB.
    """

    def __init__(self, skip: Callable[[object, object], None] = lambda record, error: None) -> None:
        """`skip` is called with each key and each job that cannot be read, and with the reason."""
        self._skip = skip
        #: The number of the last batch.
        self.number = 0
        #: The ends of runs, each with what its reader needs to settle it.
        self.ends: list[tuple[RunEnd, Any]] = []
        #: What the last batch with `stored` says, and its number.
        self._stored_in, self._stored, self._refused = 0, 0, frozenset[str]()
        #: The jobs that may not be stored, as JSON values, each with the number of its batch.
        self._jobs: list[tuple[int, Any]] = []
        #: The keys as the batches leave them, None for a free one, and the number of the last batch that has each.
        self._keys: dict[str, Key | None] = {}
        self._numbers: dict[str, int] = {}
        #: By the number of a snapshot: its keys, without those that a later batch has; and the
        #: places of the parts that have come, and how many parts there are.
        self._snapshots: dict[int, dict[str, Key]] = {}
        self._parts: dict[int, tuple[set[int], int]] = {}

    def take(self, batch: Batch) -> None:
        """Take in one batch."""
        number = batch.n
        self.number = max(self.number, number)
        if batch.stored is not None and number > self._stored_in:
            self._stored_in, self._stored, self._refused = number, batch.stored[0], frozenset(batch.stored[1])
            self._jobs = [job for job in self._jobs if self._may_be_out(*job)]
        self._jobs += [(number, job) for job in batch.jobs if self._may_be_out(number, job)]
        if batch.all is not None:
            self._take_part(batch, *batch.all)
            return
        for name, plain in batch.keys.items():
            if number >= self._numbers.get(name, 0):
                self._numbers[name] = number
                self._keys[name] = self._read(Key.from_plain, plain)
                for before, snapshot in self._snapshots.items():
                    if before <= number:
                        snapshot.pop(name, None)

    def _take_part(self, batch: Batch, place: int, count: int) -> None:
        self._parts.setdefault(batch.n, (set(), count))[0].add(place)
        snapshot = self._snapshots.setdefault(batch.n, {})
        for name, plain in batch.keys.items():
            if self._numbers.get(name, 0) < batch.n and (key := self._read(Key.from_plain, plain)) is not None:
                snapshot[name] = key

    def _may_be_out(self, number: int, plain: Any) -> bool:
        return number > self._stored or (isinstance(plain, dict) and str(plain.get("id")) in self._refused)

    def _read(self, read: Callable[[Any], Any], plain: Any) -> Any:
        try:
            return None if plain is None else read(plain)
        except UNREADABLE as error:
            self._skip(plain, error)
            return None

    def unstored_jobs(self) -> dict[str, Message]:
        """The jobs that may not be stored, by id."""
        found = (self._read(message_from_plain, plain) for _, plain in self._jobs)
        return {job.id: job for job in found if job is not None}

    def held_keys(self) -> list[Key]:
        """The keys that are not free."""
        last = max((number for number, (places, count) in self._parts.items() if len(places) >= count), default=0)
        found = list(self._snapshots.get(last, {}).values())
        found += [key for name, key in self._keys.items() if key is not None and self._numbers[name] >= last]
        return found


def parts(keys: Iterable[Key]) -> Iterator[dict[str, Any]]:
    """The states of the keys that are not free, by name, as the parts of a snapshot; at least one part."""
    part, size = dict[str, Any](), 0
    for key in keys:
        if key.is_free:
            continue
        if len(part) >= _PART or size > _PART_BYTES:
            yield part
            part, size = {}, 0
        part[key.name] = key.to_plain()
        size += sum(len(kept.message.body) for kept in (key.next, key.holder and key.holder.content) if kept)
    yield part
