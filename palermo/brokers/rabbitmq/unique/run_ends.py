"""The ends of runs, as workers write them to the leader's ledger of keys before they acknowledge the jobs."""

from palermo.brokers.rabbitmq.publishing.ledger_records import EndRecord
from palermo.core.topology import internal
from palermo.core.unique_rules import RunOutcome


def key_queue(exchange: str) -> str:
    """The AMQP name of the ledger of keys."""
    return internal(exchange, "unique")


class RunEnd(EndRecord, frozen=True, kw_only=True):
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
