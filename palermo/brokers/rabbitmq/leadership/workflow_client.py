"""One session's requests about workflows: asks the leader, and records how steps have ended."""

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from palermo.brokers.features.gathered import Gathered
from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.publisher import RecordQueue
from palermo.brokers.rabbitmq.leadership import operations
from palermo.brokers.rabbitmq.leadership.operations import AsJson
from palermo.brokers.rabbitmq.leadership.work import Ask
from palermo.brokers.rabbitmq.publishing.end_writer import EndWriter
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.brokers.rabbitmq.seconds import STORED_WITHIN
from palermo.brokers.rabbitmq.workflows.step_reports import RunEnd, StepReport, record_of, workflow_queue
from palermo.contract.broker import SessionParameters
from palermo.contract.finding import JobLocation
from palermo.contract.workflows import WorkflowInfo
from palermo.core.lifecycle import JobState, StoredResult
from palermo.core.message import Message
from palermo.core.topology import is_failed
from palermo.core.workflow import step_of
from palermo.core.workflow_rules import How, is_member
from palermo.errors import BrokerUnavailable, NotFound


class RabbitmqWorkflows:
    """See palermo.contract.workflows.Workflows; the other methods are for the session's other parts."""

    def __init__(
        self,
        session: SessionParameters,
        connection: Connection,
        outbox: Outbox,
        ask: Ask,
        reading: Callable[[], Awaitable[Connection]],
    ) -> None:
        """`reading` returns the connection for reading."""
        arguments = versions.arguments(session.queue_type, connection.version)
        self._queue = RecordQueue(workflow_queue(session.exchange), connection, outbox.open, arguments)
        self._ends = EndWriter(self._queue, connection, outbox, session.timeout)
        #: The ends to write, each as the job's id and the encoded end.
        self._gathered = Gathered(self._write, size=lambda end: len(end[1]))
        self._ask = ask
        self._reading = reading

    async def all(self) -> list[WorkflowInfo]:
        return await self._ask(operations.ListWorkflows(None)) if await self.exist() else []

    async def find(self, id: str) -> WorkflowInfo | None:
        found = await self._ask(operations.ListWorkflows(id)) if await self.exist() else []
        return found[0] if found else None

    async def failed_jobs(self, id: str) -> list[str]:
        return await self._ask(operations.ListFailedSteps(id)) if await self.exist() else []

    async def signal(self, id: str, name: str, value: StoredResult) -> None:
        if not await self.exist():
            raise NotFound(f"workflow {id} is not waiting for signals, because no workflow has added steps yet.")
        text = b64encode(value.body).decode()
        await self._ask(operations.SignalWorkflow(id, name, value.content_type, text))

    async def next_due(self) -> float | None:
        if await self.exist():
            await self._ask(operations.ListWorkflows(""))  # the leader does all due work before it answers
        return None

    async def cancel(self, ids: Collection[str]) -> list[str]:
        """Cancel the workflows among these jobs; return the ids of their waiting and running jobs."""
        return await self._ask(operations.CancelWorkflows(list(ids))) if await self.exist() else []

    async def with_workflows(
        self, found: Iterable[JobLocation], ids: Collection[str], *, failed: bool
    ) -> list[JobLocation]:
        """These jobs, and the workflows with the other ids, as running jobs, or, if `failed`, as failed ones."""
        jobs = list(found)
        left = sorted(set(ids) - {job.id for job in jobs})
        places = await self._ask(operations.LocateWorkflows(left)) if left and await self.exist() else []
        running = [JobLocation(state=JobState.WORKING, running=one.running) for one in places if one.running]
        over = [JobLocation(state=JobState.FAILED, message=one.message.value) for one in places if one.message]
        return jobs + running + (over if failed else [])

    async def running(self, ids: Collection[str]) -> set[str]:
        """The ids among these of workflows that have not ended."""
        places = await self.with_workflows((), ids, failed=False)
        return {place.running.id for place in places if place.running is not None}

    def send_end(self, message: Message, how: How, output: StoredResult | None = None) -> Awaitable[None]:
        """Send the end of a step's run that added no steps. Returns an awaitable for its storage.

        It may take as long as an alarm, and raises BrokerUnavailable.
        """
        step = step_of(message.extra)
        assert step is not None
        end = message.id, msgspec.json.encode(RunEnd.of(step, how, output))
        return self._gathered.add(end, urgent=not is_member(step[1]))

    async def _write(self, ends: Sequence[tuple[str, bytes]]) -> None:
        await (await self._ends.send(ends[0][0], record_of([end for _, end in ends])))

    async def record_added(self, message: Message, adds: bytes) -> None:
        """Record the steps that a run has added; returns once that is stored, which may take as long as an alarm."""
        report = StepReport(message=_bare(message), adds=b64encode(adds).decode())
        await (await self._ends.send(message.id, report.encode()))

    async def has_ended(self, message: Message) -> bool:
        """Whether the end of this run of a step is stored. False if no leader answers soon."""
        run = step_of(message.extra)
        if run is not None and await self.exist():
            with suppress(BrokerUnavailable, TimeoutError):
                async with asyncio.timeout(STORED_WITHIN):
                    return await self._ask(operations.HasEnded(*run))
        return False

    async def size(self) -> int:
        """Size of the stored workflows in bytes."""
        return await self._ask(operations.MeasureWorkflows()) if await self.exist() else 0

    async def leaving(self, jobs: Iterable[Message], how: How = How.CANCELLED) -> None:
        """End these steps, which are about to be removed. Ignores other jobs."""
        steps = [AsJson(_bare(job)) for job in jobs if step_of(job.extra) is not None]
        if steps and await self.exist():
            await self._ask(operations.EndSteps(steps, how))

    async def gate(
        self, queue: str, jobs: Sequence[tuple[Message, Message | None]], may: Sequence[bool]
    ) -> list[bool | Message]:
        """Whether each of these jobs may leave the queue; `may` has the decisions made so far.

        Each job comes with the message that replaces it, or with None to remove it. A failed step that may run again
        gets another message. A removed step ends.
        """
        found: list[bool | Message] = list(may)
        again = [
            (number, put)
            for number, (_, put) in enumerate(jobs)
            if found[number] and put is not None and is_failed(queue) and not is_failed(put.queue)
            if step_of(put.extra) is not None
        ]
        if not is_failed(queue):
            await self.leaving(job for (job, put), allowed in zip(jobs, may, strict=True) if allowed and put is None)
        if again and await self.exist():
            answers = await self._ask(operations.RequeueSteps([AsJson(_bare(put)) for _, put in again]))
            for (number, put), headers in zip(again, answers, strict=True):
                found[number] = headers is not None and replace(put, extra={**put.extra, **headers})
        return found

    async def exist(self) -> bool:
        """Whether any workflow has ever run here. If not, the leader need not be asked."""
        return await self._queue.exists(await self._reading())


def _bare(message: Message) -> Message:
    """A message without its arguments, which aren't needed to identify its step."""
    return replace(message, body=b"", failure=None, attempts=())
