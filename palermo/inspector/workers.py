"""The workers: list them, measure them, send them commands, start and stop them."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from palermo.contract.broker import Broker
from palermo.contract.finding import CANCELLED
from palermo.contract.row_types import WorkerRow, WorkerUsageRow
from palermo.contract.rows import Row, as_json
from palermo.contract.worker_info import WorkerCommand, WorkerInfo
from palermo.core.times import Duration
from palermo.errors import NotFound, OptionInvalid
from palermo.inspector.context import PROMPT, Context

if TYPE_CHECKING:
    from palermo.worker.handle import WorkerHandle

#: The actions of inspector.workers.control. The table in palermo/worker/parent/orders.py has these, and the orders that
#: Palermo itself sends.
ACTIONS = ("quiet", "resume", "stop", "kill", "stack")

#: Seconds that workers have for an answer.
PATIENCE = 5.0

#: Maximum number of ids about which all workers are asked. With more ids, a worker is asked only about the jobs that it
#: reports as running, and its report may be a moment old.
_FEW = 100

#: Maximum number of unanswered orders.
_AT_ONCE = 25


def choose(pids: Mapping[str, int], named: Sequence[str]) -> list[str]:
    """The ids of the running workers with these names: an id, a pid, or the beginning of an id.

    `pids` has the pids of all running workers, by id. Raises NotFound.
    """
    chosen: dict[str, None] = {}
    for name in named:
        ids = [id for id, pid in pids.items() if name in (id, str(pid))]
        ids = ids or [id for id in pids if name and id.startswith(name)]
        if not ids:
            raise NotFound(f"no worker {name!r} is running; `palermo workers` lists the workers.")
        if len(ids) > 1:
            raise NotFound(f"{name!r} matches {len(ids)} workers: {', '.join(ids)}. Give the id of one of them.")
        chosen[ids[0]] = None
    return list(chosen)


async def control(broker: Broker, action: str, named: Sequence[str] | None, *, by: str) -> list[Row]:
    """Send workers a command, for inspector.workers.control.

    A row has `worker`; `answered`, which is False for a worker that didn't answer in time but may still obey; and the
    values of the answer (palermo/worker/parent/orders.py).
    """
    pids = {info.id: info.pid for info in await broker.workers()}
    meant = list(pids) if named is None else choose(pids, named)
    if not meant:
        return []
    answers = await broker.command(WorkerCommand(action=action, workers=tuple(meant), by=by), timeout=PATIENCE)
    values = {answer.worker: answer.values for answer in answers}
    return [
        {
            "worker": as_json(id),
            "answered": id in values,
            **{str(name): as_json(value) for name, value in values.get(id, {}).items()},
        }
        for id in meant
    ]


async def cancel(broker: Broker, ids: Sequence[str], *, by: str) -> list[Row]:
    """Cancel jobs, for inspector.jobs.cancel: mark them, then stop those that run.

    A job that was enqueued by a clock that is ahead gets a second mark.

    A row is `id`, `state`, `worker`, `job` and `queue`. The state is "marked" (the job won't run if it is waiting,
    which is unknown), "cancelled" (it was running, and was stopped), "cancelling" (it is running, and will be killed if
    it doesn't end), or "done" or "failed" (it ended first).
    """
    everyone = len(ids) <= _FEW
    running = {} if everyone else _running(await broker.workers(), set(ids))
    steps = set(await broker.cancel(ids, by=by))
    if steps:
        found = _running(await broker.workers(), steps)
        ends = (WorkerCommand(action="cancel", id=id, workers=(worker,), by=by) for id, worker in found.items())
        await asyncio.gather(*(broker.command(order, timeout=PATIENCE) for order in ends))
    if not everyone:
        # Again, because a job that started in between may not have seen its mark.
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
        # They were enqueued by a clock that is ahead of this one: a mark of this second does not apply to them.
        for place in (await broker.find(waiting, failed=False)).jobs:
            if place.message is not None and place.state != CANCELLED:
                await broker.cancel([place.id], by=by, created_at=place.message.created_at)
    return list(rows.values())


def _running(workers: Sequence[WorkerInfo], ids: set[str]) -> dict[str, str]:
    """The worker that runs each job."""
    return {job.id: info.id for info in workers for job in info.jobs if job.id in ids}


class Workers(Context):
    """The workers that are alive."""

    def show(self, id: str) -> WorkerUsageRow:
        """The row of one worker, with `memory` and `cpu` as in `usage`; None if they are unknown. Raises NotFound."""
        row = next((row for row in self.list() if row["id"] == id), None)
        if row is None:
            raise NotFound(f"no worker {id!r} is running; `palermo workers` lists the workers.")
        used = next(iter(self.usage([id]) if row["answers"] else ()), {"memory": None, "cpu": None})
        return {**row, "memory": used["memory"], "cpu": used["cpu"]}

    def usage(self, workers: Iterable[str] | None = None) -> list[Row]:
        """The memory and CPU of all workers, or of the workers with these ids: a row for each that answers in a second.

        A row has `worker`; `memory`, the bytes of RAM of its processes, with shared memory counted for each; and `cpu`,
        the seconds of processor time they have used. An unknown value is None.
        """
        named = None if workers is None else tuple(workers)
        if named == ():
            return []
        command = WorkerCommand(action="memory", workers=named or ())
        answers = self._ask(lambda broker: broker.command(command, timeout=PROMPT), again=True)
        return [
            {"worker": as_json(each.worker), **{name: as_json(each.values.get(name)) for name in ("memory", "cpu")}}
            for each in answers
        ]

    def control(self, action: str, workers: str | Iterable[str] | None, *, by: str = "") -> list[Row]:
        """Order workers to `quiet`, `resume`, `stop`, `kill` or `stack`; a row for each: see palermo.inspector.workers.

        A worker is named by its id, its pid or an unambiguous beginning of its id; None means all. Raises NotFound,
        before anything is done, if a worker doesn't exist.
        """
        if action not in ACTIONS:
            raise OptionInvalid(f"there is no command {action!r} for workers. The commands are {', '.join(ACTIONS)}.")
        named = [workers] if isinstance(workers, str) else None if workers is None else list(workers)
        by = by or self._actor.name
        rows = self._ask(lambda broker: control(broker, action, named, by=by))
        self._record(
            f"{action} workers", by=by, count=len(rows), what=", ".join(str(row["worker"]) for row in rows[:20])
        )
        return rows

    def start(self, modules: Sequence[str], **options: Any) -> "WorkerHandle":
        """Start a worker on this broker in its own process; options as for `palermo.start_worker`."""
        from palermo.worker.handle import start_worker

        return start_worker(modules, settings=self._client.settings, **options)

    def stop(self, worker: "WorkerHandle | str", timeout: Duration | None = None) -> int | None:
        """Stop a worker that start_worker started, once its running jobs have ended; returns its exit code.

        Any other worker, named by its id, is stopped as by `control`, and None is returned immediately. Raises NotFound
        if it doesn't exist.
        """
        if isinstance(worker, str):
            self.control("stop", worker)
            return None
        return worker.stop(timeout)

    def list(self) -> list[WorkerRow]:
        """All running workers, by id, with their jobs.

        A worker that doesn't answer has `answers` False, the state "silent" and its last known values. A worker that
        this user may not ask has the state "unasked" instead.
        """
        return self._worker_rows(self._ask(lambda broker: broker.workers(), again=True))
