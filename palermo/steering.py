"""Steering workers from afar: which of them an order is for, and what came of it."""

import asyncio
from collections.abc import Mapping, Sequence

from palermo.broker import Broker
from palermo.crew import Order, WorkerInfo
from palermo.errors import NotFound, OptionInvalid
from palermo.rows import Row, plain

#: What Inspector.control takes; the table in palermo/worker/orders.py has them and what is asked inside Palermo.
ACTIONS = ("quiet", "resume", "stop", "kill", "stack")

#: Seconds that workers have to answer.
PATIENCE = 5.0

#: So many ids are asked about one by one; of more, only those that a worker says it runs, which may be a moment old.
_FEW = 100

#: Orders that are out at one time.
_AT_ONCE = 25


def check_action(action: str) -> str:
    """The action, if people may order it. Raises OptionInvalid."""
    if action not in ACTIONS:
        raise OptionInvalid(f"workers do not know {action!r}. Known: {', '.join(ACTIONS)}.")
    return action


def choose(pids: Mapping[str, int], named: Sequence[str]) -> list[str]:
    """The ids of the workers meant, of those alive: each by its id, its pid, or the beginning of its id.

    `pids` are those alive, by id. Raises NotFound.
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
    """Inspector.control.

    A row is `worker`, `answered`, which is False for one that said nothing in time and may obey
    yet, and what the table in palermo/worker/orders.py says of the answer.
    """
    pids = {info.id: info.pid for info in await broker.workers()}
    meant = list(pids) if named is None else choose(pids, named)
    if not meant:
        return []
    answers = await broker.command(Order(action=action, workers=tuple(meant), by=by), timeout=PATIENCE)
    values = {answer.worker: answer.values for answer in answers}
    return [_row(id, values.get(id)) for id in meant]


def _row(id: str, values: Mapping[str, object] | None) -> Row:
    told = {str(name): plain(value) for name, value in (values or {}).items()}
    return {"worker": plain(id), "answered": values is not None, **told}


async def cancel(broker: Broker, ids: Sequence[str], *, by: str) -> list[Row]:
    """Inspector.cancel: the marks first, and then an order to whoever runs one.

    A row is `id`, `state`, `worker`, `job` and `queue`. The state is "marked": the job will not
    run if it still waits, and nobody can say whether it does; "cancelled": it ran, and was ended;
    "cancelling": it runs, and is killed if it does not end; "done" or "failed": it was faster.
    """
    everyone = len(ids) <= _FEW
    running = {} if everyone else _running(await broker.workers(), set(ids))
    await broker.cancel(ids, by=by)
    if not everyone:
        # Again: what began in between may not have known of its mark.
        running |= _running(await broker.workers(), set(ids))
    orders = [
        Order(action="cancel", id=id, workers=() if everyone else (running[id],), by=by)
        for id in (ids if everyone else running)
    ]
    rows: dict[str, Row] = {id: {"id": id, "state": "marked", "worker": None, "job": None, "queue": None} for id in ids}
    for start in range(0, len(orders), _AT_ONCE):
        asked = (broker.command(order, timeout=PATIENCE) for order in orders[start : start + _AT_ONCE])
        for order, answers in zip(orders[start:], await asyncio.gather(*asked), strict=False):
            for answer in answers:
                told = {name: plain(answer.values.get(name)) for name in ("state", "job", "queue")}
                rows[order.id].update(worker=answer.worker, **told)
    return list(rows.values())


def _running(workers: Sequence[WorkerInfo], ids: set[str]) -> dict[str, str]:
    """By job, the worker that runs it."""
    return {job.id: info.id for info in workers for job in info.jobs if job.id in ids}
