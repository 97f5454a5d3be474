"""`inspector.workflows`: list and show workflows, retry failed steps, send signals."""

from collections.abc import Sequence
from typing import Any

from palermo.client import control, results
from palermo.contract import clock
from palermo.contract.rows import Row
from palermo.contract.workflows import WorkflowInfo
from palermo.core.topology import check_id
from palermo.errors import NotFound, PalermoError, UsageError
from palermo.inspector.context import Context
from palermo.inspector.failed import FailedJobs
from palermo.inspector.judges import TakenJob
from palermo.inspector.workflow_rows import info_of_record, step_rows, workflow_row

#: Why a failed workflow has no failed job.
_NO_JOB = "The job was discarded or cancelled, or the workflow missed a deadline or a signal. Enqueue a new workflow."


class Workflows(Context):
    """Running and failed workflows, and ended ones by id."""

    def show(self, id: str) -> Row:
        """Return one workflow: a row of `list` with `steps`.

        A step's row has `name`, `state`, `kind` (job, map, signal or workflow), its job's `id`, `job` and `queue`, the
        steps `after` which it runs, its `output`, and `why` it hasn't ended. A map's row also has `over`, `failed`,
        `out`, `running` and `total`. An ended workflow is read from the journal, without the jobs and outputs of its
        steps. If it is large, the last `left_out` steps are missing. Raises NotFound.
        """
        info = self._find(id)
        if info is None:
            job = self._client.job_by_id(check_id(id))
            record = self._client.watch(results.find_end(self._client, job))
            info = None if record is None else info_of_record(record)
        if info is None:
            raise NotFound(f"there is no workflow {id}. `palermo workflows` lists the running and failed workflows.")
        now = self._snapshot() if any(step.state == "pending" for step in info.steps.values()) else None
        queues, workers = (now.queues, now.workers) if now is not None else ((), ())
        return {**workflow_row(info), "steps": step_rows(info, self._client.serializers, queues, workers)}

    def cleaned_up(self, id: str) -> Sequence[str]:
        """Return the steps with `when="failed"` that have run. A retry repeats the work that they may have undone, and
        afterwards they may run again.
        """
        info = self._find(id)
        return () if info is None else info.cleaned_up

    def retry(self, id: str) -> list[TakenJob]:
        """Requeue the failed jobs of a workflow, so that it continues. The steps after them run again.

        If a step's failed job was discarded, the step stays failed. Raises NotFound, and UsageError for a workflow
        without a failed job.
        """
        ids = self._ask(lambda broker: broker.workflows.failed_jobs(check_id(id)), again=True)
        errors: list[PalermoError] = []
        taken = FailedJobs.of(self).requeue(ids, on_error=errors.append) if ids else []
        for error in errors:
            if not isinstance(error, NotFound):
                raise error
        if not taken:
            state = self.show(id)["state"]
            raise UsageError(
                f"workflow {id} has no failed job left to requeue. {_NO_JOB}"
                if state == "failed"
                else f"workflow {id} is {state} and has no failed job to requeue."
            )
        self._record("retry workflow", ids=[id], at=clock.now())
        return taken

    def signal(self, id: str, name: str, value: Any = None) -> str:
        """Send a signal to a workflow. See `Job.signal`.

        Return a note if the value is ignored, or if no step waits for it now, otherwise "".
        """
        found = self._find(id)
        self._client.watch(control.signal(self._client, id, name, value))
        self._record("signal", ids=[id], what=name)
        if found is not None and name in found.sent:
            return f"This value is ignored, because {name} was sent before and only its first value counts."
        waits = (name,) if found is None else found.waits_for
        others = f"; steps wait for {', '.join(waits)}" if waits else ""
        note = f"No step waits for it now{others}. The first value sent under a name is kept for a later step."
        return "" if name in waits else note

    def list(self) -> list[Row]:
        """List the running and failed workflows, oldest first.

        A row has `id`, `job`, `queue`, `state` (running or failed), `since`, `ended_at`, the number of its steps that
        are `done` and `failed`, and their `total`, the number of `jobs` that are queued or running, and `waits_for`,
        the signals that it is waiting for. In these numbers, each member of a map counts as a step.
        """
        return [workflow_row(info) for info in self._all()]

    def _all(self) -> Sequence[WorkflowInfo]:
        return self._ask(lambda broker: broker.workflows.all(), again=True)

    def _find(self, id: str) -> WorkflowInfo | None:
        return self._ask(lambda broker: broker.workflows.find(check_id(id)), again=True)
