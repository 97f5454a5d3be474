"""The records of a ledger as values: a leader's batches, and the state that results from all records.

Law: the result doesn't depend on the order of the records, nor on how often each is read, since a leader may read
records again that an earlier one had replaced.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Self, TypeVar

from msgspec import Struct, convert, to_builtins

from palermo.brokers.features.portions import portions
from palermo.contract.stored_records import UNREADABLE
from palermo.core.message import Message
from palermo.core.plain import PlainWithMessages, message_from_plain
from palermo.errors import BrokerUnavailable

T = TypeVar("T")

#: The format of the records. A leader that finds a newer format hands over to a newer leader.
FORMAT = 1

#: Maximum number of states in one part of a snapshot, and characters of their JSON.
_PART, _PART_SIZE = 200, 1_048_576


class HandsOver(BrokerUnavailable):
    """The leader ends so that another session can lead."""


class NewerFormat(HandsOver):
    """A request or a record has a format that this version doesn't know."""


def newer_format(record: Mapping[str, Any]) -> NewerFormat | None:
    """The error for a record with an unknown format; None if the format is known."""
    format = record.get("format")
    if not isinstance(format, int) or format <= FORMAT:
        return None
    return NewerFormat(
        f"a record has format {format}, but this version of Palermo reads formats only up to {FORMAT}. Start a worker"
        " of the version that wrote it."
    )


class Batch(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Changes that take effect together, written by the leader.

    A large batch is several records with the same number.
    """

    format: int
    n: int
    #: The leader that wrote it.
    by: str
    #: States by name; None removes one. Of several states with one name, the highest batch number counts.
    set: dict[str, Any] = {}
    #: The jobs that the batch releases. They are published after it.
    jobs: list[Any] = []
    #: Reports that the jobs of all earlier batches are stored, except those with these ids, which their queues refused.
    #: Of several, the highest batch number counts.
    refused: list[str] | None = None
    #: All states are in batches with this number or a higher one. States in earlier batches are ignored.
    floor: int = 0

    def to_plain(self) -> dict[str, Any]:
        plain: dict[str, Any] = to_builtins(self)
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """The inverse of to_plain. Raises ValueError for invalid values."""
        return convert(plain, cls)


class EndRecord(PlainWithMessages, frozen=True):
    """A worker's record in a ledger: the end of a run."""

    def encode(self) -> bytes:
        """The record as JSON."""
        return json.dumps({"format": FORMAT, "end": self.to_plain()}, separators=(",", ":")).encode()

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The inverse of `encode`, for parsed JSON.

        Raises one of palermo.contract.stored_records.UNREADABLE for an invalid record.
        """
        return cls.from_plain(record["end"])


class LedgerState(Generic[T]):
    """The state that results from the records of a ledger.

    Decodes a state when its record is added, and drops it when a later batch has a state of the same name. Drops a job
    when a batch reports it as stored. The undecoded records of 50,000 keys with their jobs would take 100 MB.
    """

    def __init__(
        self, read: Callable[[Any], T], skip: Callable[[object, object], None] = lambda record, error: None
    ) -> None:
        """`read` decodes a state; `skip` is called with each unreadable state or job, and the error."""
        self._read = read
        self._skip = skip
        #: The number of the last batch.
        self.number = 0
        #: By name: the number of the last batch with this name, and the state in it; None if removed.
        self._states: dict[str, tuple[int, T | _Unread | None]] = {}
        self._floor = 0
        #: Jobs that are possibly not stored, as JSON values, each with the number of its batch.
        self._jobs: list[tuple[int, Any]] = []
        #: The number of the last batch with `refused`, and its value.
        self._refused_in, self._refused = 0, frozenset[str]()

    def take(self, batch: Batch) -> None:
        """Add one batch."""
        number = batch.n
        self.number, self._floor = max(self.number, number), max(self._floor, batch.floor)
        if batch.refused is not None and number > self._refused_in:
            self._refused_in, self._refused = number, frozenset(batch.refused)
            self._jobs = [job for job in self._jobs if self._may_be_out(*job)]
        self._jobs += [(number, job) for job in batch.jobs if self._may_be_out(number, job)]
        for name, plain in batch.set.items():
            if number >= max(self._floor, self._states.get(name, (0,))[0]):
                self._states[name] = number, None if plain is None else self._decode(plain)

    def _may_be_out(self, number: int, plain: Any) -> bool:
        return number >= self._refused_in or (isinstance(plain, dict) and str(plain.get("id")) in self._refused)

    def _decode(self, plain: Any) -> "T | _Unread":
        try:
            return self._read(plain)
        except UNREADABLE as error:
            self._skip(plain, error)
            return _Unread(plain)

    def unstored_jobs(self) -> dict[str, Message]:
        """The jobs that are possibly not stored, by id."""
        found = dict[str, Message]()
        for _, plain in self._jobs:
            try:
                job = message_from_plain(plain)
                found[job.id] = job
            except UNREADABLE as error:
                self._skip(plain, error)
        return found

    def states(self) -> dict[str, T]:
        """The states by name."""
        return {name: state for name, state in self._held() if not isinstance(state, _Unread)}

    def unread(self) -> dict[str, Any]:
        """The states that this version can't read, as JSON values by name; another leader may be able to."""
        return {name: state.plain for name, state in self._held() if isinstance(state, _Unread)}

    def _held(self) -> "Iterator[tuple[str, T | _Unread]]":
        for name, (number, state) in self._states.items():
            if number >= self._floor and state is not None:
                yield name, state


class _Unread(Struct, frozen=True):
    plain: Any


def parts(states: Iterable[tuple[str, Any]]) -> Iterator[dict[str, Any]]:
    """Split states, as JSON values by name, into parts that each fit into a record."""
    split = portions(states, most=_PART, most_size=_PART_SIZE, size=lambda state: len(json.dumps(state[1])))
    return map(dict, split)
