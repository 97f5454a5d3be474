"""The workers: list them, ask what they use, order them to do something, start and stop them."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from palermo.contract.row_types import WorkerRow, WorkerUsageRow
from palermo.contract.rows import Row, as_json
from palermo.contract.worker_info import WorkerCommand
from palermo.core.times import Duration
from palermo.errors import NotFound
from palermo.inspector.context import PROMPT, Context
from palermo.inspector.control import check_action, control

if TYPE_CHECKING:
    from palermo.worker.handle import WorkerHandle


class Workers(Context):
    """The workers that are alive."""

    def show(self, id: str) -> WorkerUsageRow:
        """The row of one worker, with `memory` and `cpu` as in `usage`, None if it does not say. Raises NotFound."""
        row = next((row for row in self.list() if row["id"] == id), None)
        if row is None:
            raise NotFound(f"no worker {id!r} is alive; `palermo workers` lists them.")
        used = next(iter(self.usage([id]) if row["answers"] else ()), {"memory": None, "cpu": None})
        return {**row, "memory": used["memory"], "cpu": used["cpu"]}

    def usage(self, workers: Iterable[str] | None = None) -> list[Row]:
        """What workers use, all or those with these ids: a row for each that answers within a second.

        A row is `worker`; `memory`, the bytes of RAM that its processes have, where what they share is counted for each
        of them; and `cpu`, the seconds of processor time that they have used. None is what a worker does not tell.
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
        """Order workers to `quiet`, `resume`, `stop`, `kill` or `stack`; a row for each: see palermo.inspector.control.

        A worker is named by its id, its pid or the beginning of its id, if that fits only one worker;
        None means all. Raises NotFound, before anything is done, if a worker is not there.
        """
        check_action(action)
        named = [workers] if isinstance(workers, str) else None if workers is None else list(workers)
        by = by or self._actor.name
        rows = self._ask(lambda broker: control(broker, action, named, by=by))
        self._record(
            f"{action} workers", by=by, count=len(rows), what=", ".join(str(row["worker"]) for row in rows[:20])
        )
        return rows

    def start(self, modules: Sequence[str], **options: Any) -> "WorkerHandle":
        """Start a worker on this broker in a process of its own; options as for `palermo.start_worker`."""
        from palermo.worker.handle import start_worker

        return start_worker(modules, settings=self._client.settings, **options)

    def stop(self, worker: "WorkerHandle | str", timeout: Duration | None = None) -> int | None:
        """Stop a worker that start_worker started, once its running jobs have ended; returns its exit code.

        Any other worker is named by its id: it is told to stop, as by `control`, and None is returned at once. Raises
        NotFound if it is not there.
        """
        if isinstance(worker, str):
            self.control("stop", worker)
            return None
        return worker.stop(timeout)

    def list(self) -> list[WorkerRow]:
        """All workers that are alive, by id, with the jobs they run.

        One that does not answer has `answers` False, the state "silent" and what was known of it last. One that this
        user may not ask has the state "unasked" instead.
        """
        return self._worker_rows(self._ask(lambda broker: broker.workers(), again=True))
