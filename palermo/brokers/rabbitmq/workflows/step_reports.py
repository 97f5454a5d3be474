"""The ends of steps, as workers write them to the leader's ledger of workflows before they acknowledge the jobs.

A record has the ends of several runs that added no steps, or the end of one run that did.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import convert
from msgspec.structs import replace

from palermo.brokers.rabbitmq.publishing.ledger_records import FORMAT, EndRecord
from palermo.contract.stored_records import UNREADABLE
from palermo.core.lifecycle import StoredResult
from palermo.core.message import Message
from palermo.core.plain import Plain
from palermo.core.step_values import unpack
from palermo.core.topology import internal
from palermo.core.workflow import Graph
from palermo.core.workflow_rules import How, StepEnd, is_member


def workflow_queue(exchange: str) -> str:
    """The AMQP name of the ledger of workflows."""
    return internal(exchange, "workflows")


class RunEnd(Plain, frozen=True, kw_only=True, omit_defaults=True):
    """The end of a step's run that added no steps."""

    workflow: str
    #: Its path.
    step: str
    generation: int = 0
    how: How
    #: The media type and the value, in base64, of its output for later steps.
    content_type: str = ""
    value: str = ""

    @classmethod
    def of(cls, step: tuple[str, str, int], how: How, output: StoredResult | None) -> "RunEnd":
        """The end of this step's run."""
        workflow, path, generation = step
        end = cls(workflow=workflow, step=path, generation=generation, how=how)
        if output is None:
            return end
        return replace(end, content_type=output.content_type, value=b64encode(output.body).decode())

    @property
    def end(self) -> StepEnd:
        """The end in the form of the workflow rules."""
        return StepEnd(path=self.step, how=self.how, generation=self.generation)

    @property
    def output(self) -> StoredResult | None:
        """Its output for later steps."""
        return StoredResult(self.content_type, b64decode(self.value)) if self.content_type else None


def record_of(ends: Sequence[bytes]) -> bytes:
    """The record of several ends, each as JSON."""
    return b'{"format":%d,"end":{"runs":[%s]}}' % (FORMAT, b",".join(ends))


def runs_in(record: Mapping[str, Any]) -> list[RunEnd]:
    """The ends in a record; none for a StepReport. Raises one of palermo.contract.stored_records.UNREADABLE."""
    return convert(record["end"].get("runs", []), list[RunEnd])


def has_only_members(record: Mapping[str, Any]) -> bool:
    """Whether a record has only ends of map members that added no steps."""
    try:
        return all(is_member(run["step"]) for run in record["end"]["runs"])
    except UNREADABLE:
        return False


class StepReport(EndRecord, frozen=True, kw_only=True):
    """The end of a run that added steps, perhaps the first ones of a workflow."""

    #: The run's job, without its arguments.
    message: Message
    #: The added steps, packed, in base64.
    adds: str

    @property
    def graph(self) -> Graph:
        """The added steps. Raises one of palermo.contract.stored_records.UNREADABLE."""
        found: Graph = unpack(b64decode(self.adds), Graph)
        return found
