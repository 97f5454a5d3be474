"""The leader's replies to requests about workflows."""

from base64 import b64decode
from typing import Any

from palermo.brokers.features.steps import Step
from palermo.brokers.features.workflows import Workflows
from palermo.brokers.rabbitmq.leadership import operations
from palermo.brokers.rabbitmq.leadership.operations import AsJson
from palermo.core.lifecycle import StoredResult
from palermo.core.message import Message
from palermo.core.workflow import GENERATION, PATH, WORKFLOW


async def reply(engine: Workflows, operation: operations.Operation[Any]) -> Any:
    """The reply to a request about workflows."""
    match operation:
        case operations.ListWorkflows(id=None):
            return await engine.all()
        case operations.ListWorkflows(id=str(id)):
            found = await engine.find(id)
            return [] if found is None else [found]
        case operations.LocateWorkflows(ids):
            places = await engine.with_workflows((), ids, failed=True)
            return [
                operations.WorkflowPlace(one.running, None if one.message is None else AsJson(one.message))
                for one in places
            ]
        case operations.ListFailedSteps(id):
            return await engine.failed_jobs(id)
        case operations.CancelWorkflows(ids):
            return await engine.cancel(ids)
        case operations.SignalWorkflow(id, name, content_type, value):
            await engine.signal(id, name, StoredResult(content_type, b64decode(value)))
        case operations.RequeueSteps(messages):
            return [await _requeued(engine, message.value) for message in messages]
        case operations.HasEnded(id, path, generation):
            return await engine.has_ended(id, path, generation)
        case operations.EndSteps(messages, how):
            for message in messages:
                await engine.end(message.value, how, (), ())
    return None


async def _requeued(engine: Workflows, message: Message) -> dict[str, Any] | None:
    """The new headers for a failed step that runs again; None if it must not."""
    again: list[Message] = []

    def put(one: Message) -> Step:
        again[:] = [one]
        return ("requeued",)

    may = await engine.requeue(message, (), put)
    headers = again[0].extra if again else {}
    return {name: headers[name] for name in (WORKFLOW, PATH, GENERATION) if name in headers} if may else None
