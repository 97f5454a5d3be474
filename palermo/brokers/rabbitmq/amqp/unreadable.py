"""The records in Palermo's own streams and queues that a session could not read.

Law: a reader skips and counts an unreadable record, whether it comes from another program, an operator or a faulty
disk, and continues with the next record. An exception would end the connection and all work on it, and the next session
would fail at the same record.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from palermo.brokers.rabbitmq.amqp.messages import read_json
from palermo.contract.stored_records import UNREADABLE

log = logging.getLogger("palermo.rabbitmq")

T = TypeVar("T")

#: Maximum number of different records counted per source.
_MOST = 1_000


class Unreadable:
    """One session's unreadable records, by stream or queue."""

    def __init__(self) -> None:
        self._found: dict[str, set[int]] = {}

    @property
    def counts(self) -> dict[str, int]:
        """Number of different unreadable records by source, at most 1,000 each."""
        return {source: len(found) for source, found in sorted(self._found.items())}

    def skip(self, source: str, record: object, error: object) -> None:
        """Count a record; equal ones are counted once. Logs the first record of each source."""
        try:
            text = repr(record)
        except RecursionError:
            text = "nested too deeply"
        found = self._found.setdefault(source, set())
        if not found:
            # Other errors are never caused by bytes, so they are bugs in the reader.
            bug = error if isinstance(error, Exception) and not isinstance(error, UNREADABLE) else None
            log.warning(
                "skipping records that cannot be read source=%s error=%.200r record=%.200s",
                *(source, error, text),
                exc_info=bug,
            )
        if len(found) < _MOST:
            found.add(hash(text))

    def attempt(self, source: str, record: object, read: Callable[[], T]) -> T | None:
        """The result of `read` for this record. If it raises, counts the record and returns None."""
        try:
            return read()
        except Exception as error:  # the border: see the module's law
            self.skip(source, record, error)
            return None

    def take(self, source: str, body: bytes, on_record: Callable[[Mapping[str, Any]], object]) -> None:
        """Pass the JSON object in a body to `on_record`."""
        self.attempt(source, body, lambda: on_record(_object(body)))


def _object(body: bytes) -> Mapping[str, Any]:
    value = read_json(body)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value
