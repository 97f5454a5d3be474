"""The inspector's noun for workflows: list and show them, run their failed steps again, send signals."""

from collections.abc import Mapping
from typing import Any

from palermo.client import control, results
from palermo.contract import clock
from palermo.contract.rows import Row, iso_instant
from palermo.contract.workflows import WorkflowInfo
from palermo.core.failure import printable
from palermo.core.topology import check_id
from palermo.errors import NotFound, UsageError
from palermo.inspector.context import Context
from palermo.inspector.failed import FailedJobs
from palermo.inspector.judges import TakenJob


class Workflows(Context):
    """The workflows that run or have failed, and one that has ended by its id."""

    def show(self, id: str) -> Row:
        """One workflow: a row of `list`, and `steps` with `name`, `state`, and of a map `over`, `failed` and `total`.

        A workflow that has ended is read from the journal, without the numbers of maps. Raises NotFound.
        """
        info = self._find(id)
        if info is not None:
            return {**_row(info), "steps": [_step(info, name, state) for name, state in info.steps.items()]}
        record = self._client.watch(results.find_end(self._client, self._client.job_by_id(check_id(id))))
        steps = None if record is None else record.get("steps")
        if record is None or not isinstance(steps, dict):
            raise NotFound(f"there is no workflow {id}. `palermo workflows` lists those that run or have failed.")
        states = {str(name): str(state) for name, state in steps.items()}
        return {
            "id": id,
            "job": record.get("job"),
            "queue": record.get("queue"),
            "state": {"succeeded": "done"}.get(record["kind"], record["kind"]),
            "since": iso_instant(record["at"] - (record.get("took") or 0.0)),
            **_counts(states),
            "waits_for": [],
            "steps": [{"name": name, "state": state} for name, state in states.items()],
        }

    def cleaned_up(self, id: str) -> tuple[str, ...]:
        """The steps for `when="failed"` that have run: a retry runs what they undid, and may run them again."""
        info = self._find(id)
        return () if info is None else info.cleaned_up

    def retry(self, id: str) -> list[TakenJob]:
        """Requeue the failed jobs of a workflow, so that it goes on; the steps behind them run again.

        Raises NotFound, and UsageError for a workflow that has no failed steps.
        """
        ids = self._ask(lambda broker: broker.workflows.failed_jobs(check_id(id)), again=True)
        if not ids:
            state = self.show(id)["state"]
            raise UsageError(f"workflow {id} has no failed steps: it is {state}.")
        taken = FailedJobs.of(self).requeue(ids)
        self._record("retry workflow", ids=[id], at=clock.now())
        return taken

    def signal(self, id: str, name: str, value: Any = None) -> None:
        """Send a signal to a workflow. See `Job.signal`."""
        control.signal(self._client, check_id(id), name, value)
        self._record("signal", ids=[id], what=name)

    def list(self) -> list[Row]:
        """The workflows that run or have failed, oldest first.

        A row is `id`, `job`, `queue`, `state` (running or failed), `since`, the number of steps as `done`, `failed` and
        `total`, and `waits_for`, the signals that it waits for.
        """
        return [_row(info) for info in self._ask(lambda broker: broker.workflows.all(), again=True)]

    def _find(self, id: str) -> WorkflowInfo | None:
        return self._ask(lambda broker: broker.workflows.find(check_id(id)), again=True)


def _row(info: WorkflowInfo) -> Row:
    return {
        "id": printable(info.id),
        "job": printable(info.job),
        "queue": printable(info.queue),
        "state": info.state,
        "since": iso_instant(info.began_at),
        **_counts(info.steps),
        "waits_for": list(info.waits_for),
    }


def _counts(steps: Mapping[str, str]) -> dict[str, int]:
    states = list(steps.values())
    return {"done": states.count("done"), "failed": states.count("failed"), "total": len(states)}


def _step(info: WorkflowInfo, name: str, state: str) -> Row:
    over, failed, total = info.members.get(name, (0, 0, 0))
    numbers = {"over": over, "failed": failed, "total": total} if name in info.members else {}
    return {"name": printable(name), "state": state, **numbers}
