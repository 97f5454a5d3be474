"""`inspector.workers`: list, measure, control, start and stop workers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from palermo.client.control import PATIENCE
from palermo.contract.broker import Broker
from palermo.contract.row_types import WorkerRow, WorkerUsageRow
from palermo.contract.rows import Row, as_json
from palermo.contract.worker_info import WorkerCommand
from palermo.core.times import Duration
from palermo.errors import NotFound, OptionInvalid
from palermo.inspector.context import PROMPT, Context

if TYPE_CHECKING:
    from palermo.worker.handle import WorkerHandle

#: The actions of inspector.workers.control. The table in palermo/worker/parent/orders.py also contains orders that only
#: Palermo itself sends.
ACTIONS = ("quiet", "resume", "stop", "kill", "stack")


def choose(pids: Mapping[str, int], named: Sequence[str]) -> list[str]:
    """Return the ids of the running workers with these names: an id, a prefix of one, or a pid.

    `pids` contains the pids of all running workers, by id. Raises NotFound.
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

    A row has `worker`; `answered`, which is False if the worker didn't answer in time but may still execute the
    command; and the values of the answer (palermo/worker/parent/orders.py).
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


class Workers(Context):
    """The running workers."""

    def show(self, id: str) -> WorkerUsageRow:
        """Return the row of a worker, including `memory` and `cpu` as in `usage`. Raises NotFound."""
        row = next((row for row in self.list() if row["id"] == id), None)
        if row is None:
            raise NotFound(f"no worker {id!r} is running; `palermo workers` lists the workers.")
        used = next(iter(self.usage([id]) if row["answers"] else ()), {"memory": None, "cpu": None})
        return {**row, "memory": used["memory"], "cpu": used["cpu"]}

    def usage(self, workers: Iterable[str] | None = None) -> list[Row]:
        """Return the memory and CPU usage of all workers, or of these ids, in a row for each that answers within a
        second.

        A row has `worker`; `memory`, the resident bytes of its processes, with shared memory counted for each; and
        `cpu`, the processor time used in seconds. Unknown values are None.
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
        """Order workers to `quiet`, `resume`, `stop`, `kill` or `stack`. Returns a row for each: see
        palermo.inspector.workers.

        `workers` contains ids, pids or unambiguous prefixes of ids; None means all. If one doesn't exist, NotFound is
        raised before any order is sent.
        """
        if action not in ACTIONS:
            raise OptionInvalid(f"{action!r} is not a worker command. The commands are {', '.join(ACTIONS)}.")
        named = [workers] if isinstance(workers, str) else None if workers is None else list(workers)
        by = by or self._actor.name
        rows = self._ask(lambda broker: control(broker, action, named, by=by))
        self._record(
            f"{action} workers", by=by, count=len(rows), what=", ".join(str(row["worker"]) for row in rows[:20])
        )
        return rows

    def start(self, modules: Sequence[str], **options: Any) -> "WorkerHandle":
        """Start a worker on this broker in its own process. Options are as in `palermo.start_worker`."""
        from palermo.worker.handle import start_worker

        return start_worker(modules, settings=self._client.settings, **options)

    def stop(self, worker: "WorkerHandle | str", timeout: Duration | None = None) -> int | None:
        """Stop a worker started by `start` once its running jobs have ended, and return its exit code.

        Any other worker, given by its id, is stopped as by `control`, and None is returned immediately. Raises NotFound
        if it doesn't exist.
        """
        if isinstance(worker, str):
            self.control("stop", worker)
            return None
        return worker.stop(timeout)

    def list(self) -> list[WorkerRow]:
        """List all running workers by id, with their jobs.

        A worker that doesn't answer has `answers` False, the state "silent" and its last known values. The state is
        "unasked" instead if this user lacks permission to ask.
        """
        return self._worker_rows(self._ask(lambda broker: broker.workers(), again=True))
