"""The contract of every broker's diagnosis."""

from palermo.contract.broker import Broker, Finding
from tests.contract.tools import Open, message, messages


def levels(findings: list[Finding], level: str) -> list[str]:
    return [f"{finding.check}: {finding.text}" for finding in findings if finding.level == level]


class DiagnosingContract:
    async def test_a_sound_broker_has_no_findings(self, broker: Broker) -> None:
        before = await broker.diagnose()
        await broker.publish(message(queue="mail"))
        after = await broker.diagnose()

        assert levels(before, "problem") == levels(after, "problem") == []
        assert {"server version", "publish", "registry", "clock"} <= {finding.check for finding in after}

    async def test_a_diagnosis_leaves_all_as_it_was(self, broker: Broker, another: Open) -> None:
        await broker.publish_many(messages(3))
        other = await another()

        await broker.diagnose()

        assert [(queue.name, queue.pending) for queue in await other.queues() if queue.pending] == [("jobs", 3)]
        assert [found.id for found in (await other.browse("jobs")).messages] == ["jobs-0", "jobs-1", "jobs-2"]
        assert not [queue.name for queue in await other.queues() if "doctor" in queue.name]

    async def test_what_is_not_well_comes_with_advice(self, broker: Broker) -> None:
        findings = await broker.diagnose()

        assert [finding for finding in findings if finding.level not in ("ok", "warning", "problem")] == []
        assert [finding.check for finding in findings if finding.level == "warning" and not finding.advice] == []
