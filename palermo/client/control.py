"""Operations of a job's handle: signal a workflow, cancel a job."""

from typing import Any

from palermo.client.journal_watch import JournalWatch, Question
from palermo.client.status import JobClient
from palermo.contract.worker_info import WorkerCommand
from palermo.core.lifecycle import StoredResult
from palermo.errors import BodyTooLarge, OptionInvalid

#: Maximum size of a signal's value, in bytes.
MAX_SIGNAL = 65_536

#: Seconds to wait for workers to confirm a cancellation.
_PATIENCE = 5.0


def signal(client: JobClient, id: str, name: str, value: Any) -> Question[None]:
    """Send a signal to a workflow. Raises the same errors as Job.signal."""
    serializer = client.serializers.get(client.settings.serializer)
    if not serializer.safe:
        serializer = client.serializers.get("json")
    stored = StoredResult(serializer.media_type, serializer.dumps(value))
    if len(stored.body) > MAX_SIGNAL:
        raise BodyTooLarge(
            f"signal {name!r} has {len(stored.body):,} bytes; the maximum is {MAX_SIGNAL:,}. Store the data"
            " elsewhere and send a reference to it."
        )
    if not name:
        raise OptionInvalid("a signal needs the name of the step that waits for it.")

    async def ask(watch: JournalWatch) -> None:
        await (await watch.session()).workflows.signal(id, name, stored)

    return ask


def cancel(id: str) -> Question[None]:
    """Cancel a job, or a workflow with its steps."""

    async def ask(watch: JournalWatch) -> None:
        broker = await watch.session()
        ids = {id, *await broker.cancel([id])}
        for worker in await broker.workers():
            for job in worker.jobs:
                if job.id in ids:
                    order = WorkerCommand(action="cancel", id=job.id, workers=(worker.id,))
                    await broker.command(order, timeout=_PATIENCE)

    return ask
