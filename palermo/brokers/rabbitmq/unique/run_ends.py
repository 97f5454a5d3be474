"""The ends of runs, as workers write them to the leader's ledger of keys before they acknowledge the jobs."""

from collections.abc import Mapping
from typing import Any

from palermo.brokers.rabbitmq.publishing.ledger_records import FORMAT
from palermo.core.plain import PlainWithMessages
from palermo.core.topology import internal
from palermo.core.unique_rules import RunOutcome


def key_queue(exchange: str) -> str:
    """The AMQP name of the ledger of keys."""
    return internal(exchange, "unique")


class RunEnd(PlainWithMessages, frozen=True, kw_only=True):
    """The end of a run."""

    key: str
    id: str
    how: RunOutcome
    #: The serial and starts in the answer to its start; None if the job started without asking.
    serial: int | None = None
    starts: int | None = None
    #: When the job runs again, and when this was written, in Unix seconds.
    run_at: float | None = None
    at: float | None = None

    def to_record(self) -> dict[str, Any]:
        """The record for the ledger."""
        return {"format": FORMAT, "end": self.to_plain()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "RunEnd":
        """The inverse of `to_record`.

        Raises one of palermo.contract.stored_records.UNREADABLE for an invalid record.
        """
        return cls.from_plain(record["end"])
