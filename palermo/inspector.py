"""The inspector: everything that can be seen of queues, jobs and workers, and done to them, as a library.

The command line and the web pages are built on this and on nothing else. Rows are those of
palermo.rows. Looking takes no job, loses none and leaves the order as it was; what takes
jobs away judges them in one sweep (palermo.verdicts), with bounded memory.

Beside its own names the inspector has those of the original Palermo: queues_info,
workers_info, jobs_in_queue, retry_failed_job, retry_all, purge_queue, start_worker,
stop_worker.
"""

import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from palermo import failed as failed_jobs
from palermo import hooks, keyholders, recurrence, retrospect, tenancy
from palermo import scheduled as scheduled_jobs
from palermo import topics as events
from palermo.acting import Actor, write_down
from palermo.broker import Broker, Page, Swept, Verdict
from palermo.core.lifecycle import JobState
from palermo.core.message import Message
from palermo.core.topology import (
    FAILED_QUEUE,
    MIGRATABLE,
    check_id,
    check_job_queue,
    check_queue_name,
    is_failed,
)
from palermo.crew import Order
from palermo.dequeuing import Dequeuing
from palermo.errors import UsageError
from palermo.failed import ALL, Progress
from palermo.failures import read_failed, sweep_failed
from palermo.jobs import registry
from palermo.registry import JobDefinition
from palermo.rewriting import Rewriting
from palermo.rows import CANCELLED, Listing, Row, job_row, queue_row, worker_row
from palermo.steering import cancel, check_action, control
from palermo.verdicts import Taken

if TYPE_CHECKING:
    from palermo.client import Client
    from palermo.worker.handle import WorkerHandle

T = TypeVar("T")

#: Seconds that a worker gets to answer a question that shows something only.
_PROMPT = 1.0


class Inspector:
    """Looks at one broker and acts on it, through a client's connection. Safe to share between threads."""

    def __init__(self, client: "Client", actor: Actor | None = None) -> None:
        """`actor` is who acts through it, for the journal; the user of this process unless given."""
        self._client = client
        self._actor = actor or Actor.here("python")

    def on_behalf_of(self, actor: Actor) -> Self:
        """The same for somebody else."""
        other = copy(self)
        other._actor = actor
        return other

    # -- looking

    def queues(self) -> list[Row]:
        """All queues by name, `failed` always among them."""
        rows = {info.name: queue_row(info) for info in self._ask(lambda broker: broker.queues(), again=True)}
        none = {"name": FAILED_QUEUE, "pending": 0, "in_progress": 0, "workers": 0, "paused": False}
        rows.setdefault(FAILED_QUEUE, none)
        return [rows[name] for name in sorted(rows)]

    def workers(self) -> list[Row]:
        """All workers that are alive, by id, with the jobs they run."""
        return [worker_row(info) for info in self._ask(lambda broker: broker.workers(), again=True)]

    def jobs(self, queue: str, *, offset: int = 0, limit: int = 100, newest: bool = False) -> Listing:
        """Jobs that wait in a queue, oldest first; those whose state is "cancelled" will not run.

        Raises NotFound for a queue that does not exist.
        """
        check_queue_name(queue)
        page = self._browse(queue, offset=offset, limit=limit, newest=newest)
        state = JobState.FAILED if is_failed(queue) else JobState.PENDING
        rows = self._rows(page.messages, state)
        for row, message in zip(rows, page.messages, strict=True):
            if message.id in page.cancelled:
                row["state"] = CANCELLED
        return Listing(rows, page.total, page.unseen)

    def size(self, queue: str) -> int:
        """How many jobs wait in a queue. Raises NotFound."""
        check_queue_name(queue)
        for info in self._ask(lambda broker: broker.queues(), again=True):
            if info.name == queue:
                return info.pending
        return self._browse(queue, limit=1).total

    def peek(self, queue: str, *, start: int = 0, count: int = 1) -> list[Row]:
        """The next jobs of a queue, from `start` on. Raises NotFound."""
        return self.jobs(queue, offset=start, limit=count).rows

    # -- failed jobs

    failed = failed_jobs.failed
    failed_job = failed_jobs.failed_job
    count_failed = failed_jobs.count_failed
    groups = failed_jobs.groups
    requeue = failed_jobs.requeue
    discard = failed_jobs.discard
    trim_failed = failed_jobs.trim_failed

    # -- queues, and the clients that share them

    shared = tenancy.shared
    clients = tenancy.clients
    clear_client = tenancy.clear_client

    def pause(self, queue: str, *, by: str = "") -> None:
        """Have no worker take jobs from a queue until `resume`, whatever is restarted. It need not exist yet.

        Running jobs go on. `by` says who did it.
        """
        check_job_queue(queue)
        by = by or self._actor.name
        self._ask(lambda broker: broker.pause(queue, by=by))
        self._acted("pause", by=by, queue=queue)

    def resume(self, queue: str, *, by: str = "") -> None:
        """End a pause; does nothing to a queue that is not paused."""
        check_job_queue(queue)
        by = by or self._actor.name
        self._ask(lambda broker: broker.resume(queue, by=by))
        self._acted("resume", by=by, queue=queue)

    def purge(self, queue: str) -> int:
        """Remove all jobs that wait in a queue; returns how many. Raises NotFound."""
        check_queue_name(queue)
        count = self._ask(lambda broker: broker.purge(queue))
        self._acted("purge", queue=queue, count=count)
        return count

    def migrate(self, queue: str, kind: str, *, progress: Progress | None = None) -> int:
        """Make a queue one of another type, "classic", "quorum" or "priority", with all in it; returns how many moved.

        Workers and publishers may go on. Interrupted it loses nothing, and called again it goes on. Raises NotFound,
        and BrokerRefused on a broker that has but one type.
        """
        check_queue_name(queue)
        if kind not in MIGRATABLE:
            raise UsageError(f"there is no queue type {kind!r}; the types are {', '.join(MIGRATABLE)}.")
        count = self._ask(lambda broker: broker.migrate(queue, kind, progress=progress))
        self._acted("migrate", queue=queue, count=count, what=kind)
        return count

    def delete_queue(self, queue: str) -> int:
        """Remove a queue and the jobs that wait in it; returns how many. Raises NotFound."""
        check_queue_name(queue)
        count = self._ask(lambda broker: broker.delete(queue))
        self._acted("delete queue", queue=queue, count=count)
        return count

    def dequeue(
        self,
        job: Any,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
        *,
        queue: str | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Take waiting jobs out of their queue: all of this job, or those with exactly these arguments.

        `job` is a decorated class or function, or a name.
        Without `queue` it is the job's own, or the default queue where its code is not
        imported here. Where it is, its hooks before_dequeue (which may veto) and
        after_dequeue run, with the arguments given. Returns how many were taken.
        """
        definition = registry.find(job) if isinstance(job, str) else getattr(job, "definition", job)
        name = job if definition is None else definition.name
        if definition is not None and not hooks.permitted("before_dequeue", definition, args or (), kwargs or {}):
            return 0
        judge = self._dequeuing(name, args, kwargs, definition)
        try:
            self._sweep_queue(queue or self.queue_of(name), judge, progress)
        finally:
            self._acted("dequeue", queue=queue or self.queue_of(name), count=judge.count, what=name)
        if definition is not None:
            hooks.notify("after_dequeue", definition, args or (), kwargs or {})
        return judge.count

    def count_jobs(
        self,
        job: str,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
        *,
        queue: str | None = None,
    ) -> int:
        """How many waiting jobs `dequeue` would take."""
        judge = self._dequeuing(job, args, kwargs, registry.find(job), count_only=True)
        self._sweep_queue(queue or self.queue_of(job), judge)
        return judge.count

    def queue_of(self, job: str) -> str:
        """The queue of a job by its name: its own where its code is imported here, else the default one."""
        definition = registry.find(job)
        settings = self._client.settings
        return settings.default_queue if definition is None else settings.queue_of(definition)

    def cancel(self, ids: str | Iterable[str], *, by: str = "") -> list[Row]:
        """Have jobs not run, or end where they run; one row for each id: see palermo.steering.cancel.

        Failed jobs are left where they are; `discard` throws them away.
        """
        chosen = [ids] if isinstance(ids, str) else list(dict.fromkeys(ids))
        for id in chosen:
            check_id(id)
        by = by or self._actor.name
        rows = self._ask(lambda broker: cancel(broker, chosen, by=by), again=True)
        self._acted("cancel", by=by, ids=chosen)
        return rows

    def lines(self, id: str, worker: str) -> list[str]:
        """What the job with this id, which this worker runs, has logged about itself: its last 100 lines."""
        order = Order(action="lines", id=check_id(id), workers=(worker,))
        answers = self._ask(lambda broker: broker.command(order, timeout=_PROMPT), again=True)
        return [str(line) for answer in answers for line in answer.values.get("lines", ())]

    # -- workers

    def control(self, action: str, workers: str | Iterable[str] | None, *, by: str = "") -> list[Row]:
        """Have workers `quiet`, `resume`, `stop`, `kill` or `stack`; a row for each: see palermo.steering.control.

        A worker is meant by its id, its pid or the beginning of its id, as long as only one is
        called so; None means all. Raises NotFound, before anything is done, for one that is not there.
        """
        check_action(action)
        named = [workers] if isinstance(workers, str) else None if workers is None else list(workers)
        by = by or self._actor.name
        rows = self._ask(lambda broker: control(broker, action, named, by=by))
        self._acted(
            f"{action} workers", by=by, count=len(rows), what=", ".join(str(row["worker"]) for row in rows[:20])
        )
        return rows

    def start_worker(self, modules: Sequence[str], **options: Any) -> "WorkerHandle":
        """Start a worker on this broker in a process of its own; options as for `palermo.start_worker`."""
        from palermo.worker.handle import start_worker

        return start_worker(modules, settings=self._client.settings, **options)

    def stop_worker(self, worker: "WorkerHandle", timeout: float | None = None) -> int:
        """Stop a worker that start_worker started, once its running jobs have ended; its exit code."""
        return worker.stop(timeout)

    # -- scheduled jobs

    scheduled = scheduled_jobs.scheduled
    cancel_scheduled = scheduled_jobs.cancel_scheduled
    run_now = scheduled_jobs.run_now
    reschedule = scheduled_jobs.reschedule
    retries = scheduled_jobs.retries
    retry_now = scheduled_jobs.retry_now
    give_up = scheduled_jobs.give_up

    # -- keys of unique jobs, limits

    limits = keyholders.limits
    unique_keys = keyholders.unique_keys
    free_keys = keyholders.free_keys
    stray_keys = keyholders.stray_keys

    # -- recurring jobs

    recurring = recurrence.recurring
    put_recurring = recurrence.put_recurring
    remove_recurring = recurrence.remove_recurring
    switch_recurring = recurrence.switch_recurring
    run_recurring = recurrence.run_recurring

    # -- events

    topics = events.topics
    wiring = events.wiring
    replay = events.replay
    unsubscribe = events.unsubscribe

    # -- what was: read from the journal to its end each time, some 100,000 records a second

    history = retrospect.history
    life = retrospect.life
    statistics = retrospect.statistics
    audit = retrospect.audit

    queues_info = queues
    workers_info = workers
    jobs_in_queue = jobs
    retry_failed_job = requeue
    purge_queue = purge

    def retry_all(self, *, progress: Progress | None = None) -> list[Taken]:
        """Run all failed jobs again; the same as ``requeue(FailedFilter())``."""
        return self.requeue(ALL, progress=progress)

    # -- behind them

    def _acted(self, action: str, *, by: str = "", **facts: Any) -> None:
        """Write it into the journal; see palermo.acting.write_down."""
        write_down(self._client, replace(self._actor, name=by) if by else self._actor, action, **facts)

    def _ask(self, question: Callable[[Broker], Coroutine[Any, Any, T]], *, again: bool = False) -> T:
        return self._client.run(question, again=again)

    def _browse(self, queue: str, *, offset: int = 0, limit: int = 100, newest: bool = False) -> Page:
        return self._ask(lambda broker: broker.browse(queue, offset=offset, limit=limit, newest=newest), again=True)

    def _sweep(self, judge: Callable[[Message], Verdict], progress: Progress | None = None) -> None:
        self._ask(lambda broker: sweep_failed(broker, judge, progress))

    def _look(self, judge: Callable[[Message], Verdict], progress: Progress | None = None, *, id: str = "") -> Swept:
        return self._ask(lambda broker: read_failed(broker, judge, progress, id=id))

    def _sweep_queue(self, queue: str, judge: Callable[[Message], Verdict], progress: Progress | None = None) -> None:
        check_job_queue(queue)
        self._ask(lambda broker: broker.sweep(queue, judge, progress=progress))

    def _dequeuing(
        self,
        job: str,
        args: Sequence[object] | None,
        kwargs: Mapping[str, object] | None,
        definition: JobDefinition | None,
        *,
        count_only: bool = False,
    ) -> Dequeuing:
        one = definition is not None and definition.one
        return Dequeuing(job, args, kwargs, serializers=self._client.serializers, one=one, count_only=count_only)

    def _rewriting(
        self, args: Sequence[object] | None, kwargs: Mapping[str, object] | None
    ) -> Callable[[Message], Message] | None:
        if args is None and kwargs is None:
            return None
        return Rewriting(self._client.serializers, args, kwargs, find=registry.find)

    def _rows(self, messages: Sequence[Message], state: JobState) -> list[Row]:
        return [job_row(message, state, self._client.serializers) for message in messages]


class _CalledAsFunction(ModuleType):
    """Importing this module puts it where `palermo.inspector` was the function; so it is that function too."""

    def __call__(self) -> Inspector:
        from palermo.client import default_client

        return Inspector(default_client())


sys.modules[__name__].__class__ = _CalledAsFunction
