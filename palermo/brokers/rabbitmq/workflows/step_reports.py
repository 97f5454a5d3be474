"""The ends of steps, as workers write them into the leader's ledger of workflows before they acknowledge the jobs."""

from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from palermo.brokers.rabbitmq.publishing.ledger_records import FORMAT
from palermo.core.lifecycle import StoredResult
from palermo.core.message import Message
from palermo.core.plain import PlainWithMessages
from palermo.core.step_values import unpack
from palermo.core.topology import internal
from palermo.core.workflow import Graph
from palermo.core.workflow_rules import How


def workflow_queue(exchange: str) -> str:
    """The AMQP name of the queue of the ledger of workflows."""
    return internal(exchange, "workflows")


class StepReport(PlainWithMessages, frozen=True, kw_only=True):
    """The end of a run of a step, or of a run that has added the first steps of a workflow."""

    #: Its job, without its arguments.
    message: Message
    how: How
    #: What later steps get of it: the media type and the value.
    content_type: str = ""
    value: str = ""
    #: What it added, in base64.
    adds: str = ""

    def to_record(self) -> dict[str, Any]:
        """What a worker writes into the ledger."""
        return {"format": FORMAT, "end": self.to_plain()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "StepReport":
        """The end that `to_record` wrote. Raises one of palermo.contract.stored_records.UNREADABLE for others."""
        return cls.from_plain(record["end"])

    @property
    def output(self) -> StoredResult | None:
        """What later steps get of it."""
        return StoredResult(self.content_type, b64decode(self.value)) if self.content_type else None

    @property
    def graph(self) -> Graph | None:
        """What it added. Raises one of palermo.contract.stored_records.UNREADABLE."""
        found: Graph | None = unpack(b64decode(self.adds), Graph) if self.adds else None
        return found
