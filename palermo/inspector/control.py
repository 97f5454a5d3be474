"""Orders to workers: finds the workers that are meant, sends them the order, and reports what came of it."""

import asyncio
from collections.abc import Mapping, Sequence

from palermo.contract.broker import Broker
from palermo.contract.finding import CANCELLED
from palermo.contract.rows import Row, as_json
from palermo.contract.worker_info import WorkerCommand, WorkerInfo
from palermo.errors import NotFound, OptionInvalid

#: The actions of inspector.workers.control. The table in palermo/worker/parent/orders.py has these, and the orders that
#: Palermo itself sends.
ACTIONS = ("quiet", "resume", "stop", "kill", "stack")

#: Seconds that workers have for an answer.
PATIENCE = 5.0

#: Up to so many ids, all workers are asked about each id. Above that, a worker is asked only about the ids that it says
#: it runs, and what it says may be a moment old.
_FEW = 100

#: The most orders that are out at one time.
_AT_ONCE = 25


def check_action(action: str) -> None:
    """Raise OptionInvalid unless people may order this action."""
    if action not in ACTIONS:
        raise OptionInvalid(f"workers do not know {action!r}. Known: {', '.join(ACTIONS)}.")


def choose(pids: Mapping[str, int], named: Sequence[str]) -> list[str]:
    """The ids of the live workers that are meant, each named by its id, its pid, or the beginning of its id.

    `pids` has the pids of all live workers, by id. Raises NotFound.
    """
    chosen: dict[str, None] = {}
    for name in named:
        ids = [id for id, pid in pids.items() if name in (id, str(pid))]
        ids = ids or [id for id in pids if name and id.startswith(name)]
        if not ids:
            raise NotFound(f"no worker {name!r} is alive; `palermo workers` lists them.")
        if len(ids) > 1:
            raise NotFound(f"{name!r} may be any of {len(ids)} workers: {', '.join(ids)}. Name one by its id.")
        chosen[ids[0]] = None
    return list(chosen)


async def control(broker: Broker, action: str, named: Sequence[str] | None, *, by: str) -> list[Row]:
    """Order workers to do something, for inspector.workers.control.

    A row is `worker`; `answered`, which is False for a worker that said nothing in time and may still
    obey; and the values that the table in palermo/worker/parent/orders.py gives for the answer.
    """
    pids = {info.id: info.pid for info in await broker.workers()}
    meant = list(pids) if named is None else choose(pids, named)
    if not meant:
        return []
    answers = await broker.command(WorkerCommand(action=action, workers=tuple(meant), by=by), timeout=PATIENCE)
    values = {answer.worker: answer.values for answer in answers}
    return [_row(id, values.get(id)) for id in meant]


def _row(id: str, values: Mapping[str, object] | None) -> Row:
    told = {str(name): as_json(value) for name, value in (values or {}).items()}
    return {"worker": as_json(id), "answered": values is not None, **told}


async def cancel(broker: Broker, ids: Sequence[str], *, by: str) -> list[Row]:
    """Cancel jobs, for inspector.jobs.cancel: mark them, then order the workers that run one to end it.

    A job that was enqueued by a clock that is ahead gets another mark.

    A row is `id`, `state`, `worker`, `job` and `queue`. The state is "marked": the job will not
    run if it still waits, and nobody can say whether it does; "cancelled": it ran, and was ended;
    "cancelling": it runs, and is killed if it does not end; "done" or "failed": it was faster.
    """
    everyone = len(ids) <= _FEW
    running = {} if everyone else _running(await broker.workers(), set(ids))
    steps = set(await broker.cancel(ids, by=by))
    if steps:
        found = _running(await broker.workers(), steps)
        ends = (WorkerCommand(action="cancel", id=id, workers=(worker,), by=by) for id, worker in found.items())
        await asyncio.gather(*(broker.command(order, timeout=PATIENCE) for order in ends))
    if not everyone:
        # Again: a job that began in between may not have known of its mark.
        running |= _running(await broker.workers(), set(ids))
    orders = [
        WorkerCommand(action="cancel", id=id, workers=() if everyone else (running[id],), by=by)
        for id in (ids if everyone else running)
    ]
    rows: dict[str, Row] = {id: {"id": id, "state": "marked", "worker": None, "job": None, "queue": None} for id in ids}
    for start in range(0, len(orders), _AT_ONCE):
        asked = (broker.command(order, timeout=PATIENCE) for order in orders[start : start + _AT_ONCE])
        for order, answers in zip(orders[start:], await asyncio.gather(*asked), strict=False):
            for answer in answers:
                told = {name: as_json(answer.values.get(name)) for name in ("state", "job", "queue")}
                rows[order.id] = {**rows[order.id], "worker": answer.worker, **told}
    waiting = [id for id, row in rows.items() if row["state"] == "marked"]
    if everyone and waiting:
        # They were enqueued by a clock that is ahead of this one: a mark of this second does not hold for them.
        for place in (await broker.find(waiting, failed=False)).jobs:
            if place.message is not None and place.state != CANCELLED:
                await broker.cancel([place.id], by=by, created_at=place.message.created_at)
    return list(rows.values())


def _running(workers: Sequence[WorkerInfo], ids: set[str]) -> dict[str, str]:
    """By job, the worker that runs it."""
    return {job.id: info.id for info in workers for job in info.jobs if job.id in ids}
