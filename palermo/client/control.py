"""Operations of a job's handle: signal a workflow, cancel a job."""

import asyncio
from collections.abc import Sequence
from typing import Any

from palermo.client.journal_watch import JournalWatch, Question
from palermo.client.status import JobClient
from palermo.contract.broker import Broker
from palermo.contract.finding import CANCELLED
from palermo.contract.rows import Row, as_json
from palermo.contract.worker_info import WorkerCommand, WorkerInfo
from palermo.core.lifecycle import StoredResult
from palermo.core.workflow import check_step_name
from palermo.errors import BodyTooLarge

#: Maximum size of a signal's value, in bytes.
MAX_SIGNAL = 65_536

#: Seconds for workers to answer.
PATIENCE = 5.0

#: Maximum number of ids about which all workers are asked. With more, a worker is asked only about the jobs that it
#: last reported as running.
_FEW = 100

#: Maximum number of orders waiting for an answer.
_AT_ONCE = 25


def signal(client: JobClient, id: str, name: str, value: Any) -> Question[None]:
    """Send a signal to a workflow. Raises the same errors as Job.signal."""
    check_step_name(name)
    serializer = client.serializers.get(client.settings.serializer)
    if not serializer.safe:
        serializer = client.serializers.get("json")
    stored = StoredResult(serializer.media_type, serializer.dumps(value))
    if len(stored.body) > MAX_SIGNAL:
        raise BodyTooLarge(
            f"signal {name!r} has {len(stored.body):,} bytes; the maximum is {MAX_SIGNAL:,}. Store the data"
            " elsewhere and send a reference to it."
        )

    async def ask(watch: JournalWatch) -> None:
        await (await watch.session()).workflows.signal(id, name, stored)

    return ask


def cancel(id: str) -> Question[None]:
    """Cancel a job, or a workflow with its steps."""

    async def ask(watch: JournalWatch) -> None:
        await cancel_jobs(await watch.session(), [id])

    return ask


async def cancel_jobs(broker: Broker, ids: Sequence[str], *, by: str = "") -> list[Row]:
    """Cancel jobs: mark them, then stop those that are running.

    A row has `id`, `state`, `worker`, `job` and `queue`. The states are "marked" (it won't run if it is waiting, which
    is unknown), "cancelled" (it was running and has been stopped), "cancelling" (it is running, and will be killed
    unless it ends) and "done" or "failed" (it ended before).
    """
    everyone = len(ids) <= _FEW
    running = {} if everyone else _running(await broker.workers(), set(ids))
    steps = set(await broker.cancel(ids, by=by))
    if steps:
        found = _running(await broker.workers(), steps)
        ends = (WorkerCommand(action="cancel", id=id, workers=(worker,), by=by) for id, worker in found.items())
        await asyncio.gather(*(broker.command(order, timeout=PATIENCE) for order in ends))
    if not everyone:
        # Again, because a job that started in between possibly missed its mark.
        running |= _running(await broker.workers(), set(ids))
    orders = [
        WorkerCommand(action="cancel", id=id, workers=() if everyone else (running[id],), by=by)
        for id in (ids if everyone else running)
    ]
    marked: Row = {"state": "marked", "worker": None, "job": None, "queue": None}
    rows: dict[str, Row] = {id: {"id": id, **marked} for id in ids}
    for start in range(0, len(orders), _AT_ONCE):
        asked = (broker.command(order, timeout=PATIENCE) for order in orders[start : start + _AT_ONCE])
        for order, answers in zip(orders[start:], await asyncio.gather(*asked), strict=False):
            for answer in answers:
                reported = {name: as_json(answer.values.get(name)) for name in ("state", "job", "queue")}
                rows[order.id] = {**rows[order.id], "worker": answer.worker, **reported}
    waiting = [id for id, row in rows.items() if row["state"] in ("marked", "done", "failed")]
    if everyone and waiting:
        for place in (await broker.find(waiting, failed=False)).jobs:
            if place.message is None:
                continue
            rows[place.id] = {"id": place.id, **marked}  # the worker reported an earlier run of a job that waits again
            # A mark doesn't apply to jobs enqueued after it, so jobs from a clock that is ahead need another one.
            if place.state != CANCELLED:
                await broker.cancel([place.id], by=by, created_at=place.message.created_at)
    return list(rows.values())


def _running(workers: Sequence[WorkerInfo], ids: set[str]) -> dict[str, str]:
    return {job.id: info.id for info in workers for job in info.jobs if job.id in ids}
