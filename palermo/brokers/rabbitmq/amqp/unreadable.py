"""The records in Palermo's own streams and queues that a session could not read.

Law: whatever bytes another program, an operator or a faulty disk puts there, the reader skips and counts them, and goes
on with the next record. An exception that left a reader would end the connection, with all that is under way on it; and
the next session would read the same record.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from palermo.brokers.rabbitmq.amqp.messages import read_json
from palermo.contract.stored_records import UNREADABLE

log = logging.getLogger("palermo.rabbitmq")

T = TypeVar("T")

#: The most records of one source that are told apart.
_MOST = 1_000


class Unreadable:
    """The unreadable records of one session, by the stream or queue that they came from."""

    def __init__(self) -> None:
        self._found: dict[str, set[int]] = {}

    @property
    def counts(self) -> dict[str, int]:
        """How many different records could not be read, at most 1,000 of each source."""
        return {source: len(found) for source, found in sorted(self._found.items())}

    def skip(self, source: str, record: object, error: object) -> None:
        """Count a record, unless this session has counted an equal one. Log the first one of each source."""
        try:
            text = repr(record)
        except RecursionError:
            text = "nested too deep"
        found = self._found.setdefault(source, set())
        if not found:
            # An error that no bytes explain is a bug of the reader's.
            bug = error if isinstance(error, Exception) and not isinstance(error, UNREADABLE) else None
            log.warning(
                "a record cannot be read and is skipped, like all others here source=%s error=%.200r record=%.200s",
                *(source, error, text),
                exc_info=bug,
            )
        if len(found) < _MOST:
            found.add(hash(text))

    def attempt(self, source: str, record: object, read: Callable[[], T]) -> T | None:
        """What `read` makes of this record; None if it raises, and then the record is counted."""
        try:
            return read()
        except Exception as error:  # the border: see the module's law
            self.skip(source, record, error)
            return None

    def take(self, source: str, body: bytes, on_record: Callable[[Mapping[str, Any]], object]) -> None:
        """Give the JSON object in a body to `on_record`."""
        self.attempt(source, body, lambda: on_record(_object(body)))


def _object(body: bytes) -> Mapping[str, Any]:
    value = read_json(body)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value
