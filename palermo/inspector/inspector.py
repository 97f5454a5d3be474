"""The inspector: a library to look at queues, jobs and workers, and to act on them.

The command line and the web pages are built on this and on nothing else. Rows are those of
palermo.contract.rows. Looking takes no job, loses none and leaves the order as it was. A method that takes
jobs away judges them in one sweep (palermo.inspector.judges), with bounded memory.

Beside its own names the inspector has those of the original Palermo: queues_info,
workers_info, jobs_in_queue, retry_failed_job, retry_all, purge_queue, start_worker,
stop_worker.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any, Self, TypeVar

from palermo.client import dequeue as dequeuing
from palermo.client.actor import Actor
from palermo.contract import clock
from palermo.contract.broker import Broker, Page, Tenant
from palermo.contract.row_types import JobRow, WorkerUsageRow
from palermo.contract.rows import CANCELLED, Listing, Row, as_json
from palermo.contract.worker_info import WorkerCommand
from palermo.core.failure import printable
from palermo.core.lifecycle import JobState
from palermo.core.queue_selection import EVERY_QUEUE
from palermo.core.times import Duration
from palermo.core.topology import MIGRATABLE, check_id, check_job_queue, check_queue_name, is_failed
from palermo.errors import NotFound, QueueNameInvalid, UsageError
from palermo.inspector import again, events, keys, served, waiting
from palermo.inspector import failed as failed_jobs
from palermo.inspector import history as job_history
from palermo.inspector import recurring as recurring_jobs
from palermo.inspector import scheduled as scheduled_jobs
from palermo.inspector.context import Context, Progress
from palermo.inspector.control import cancel, check_action, control
from palermo.inspector.judges import TakenJob
from palermo.jobs.redaction import masked_row

if TYPE_CHECKING:
    from palermo.worker.handle import WorkerHandle

T = TypeVar("T")

#: Seconds that a worker gets to answer a question that only shows something.
_PROMPT = 1.0


class Inspector(Context):
    """Looks at one broker and acts on it, through a client's connection. Safe to share between threads."""

    def on_behalf_of(self, actor: Actor) -> Self:
        """The same inspector for another actor."""
        other = copy(self)
        other._actor = actor
        return other

    # -- looking

    def jobs(
        self, queue: str, *, offset: int = 0, limit: int = 100, newest: bool = False, text: str | None = None
    ) -> Listing[JobRow]:
        """Jobs that wait in a queue, oldest first; those whose state is "cancelled" will not run.

        With `text` only those jobs of the page that have it: see WaitingFilter.

        Raises NotFound for a queue that does not exist.
        """
        check_queue_name(queue)
        page = self._browse(queue, offset=offset, limit=limit, newest=newest)
        state = JobState.FAILED if is_failed(queue) else JobState.PENDING
        messages = [one for one in page.messages if text is None or waiting.may_contain(one, text.casefold())]
        rows = self._rows(messages, state)
        for row, message in zip(rows, messages, strict=True):
            if message.id in page.cancelled:
                row["state"] = CANCELLED
        if text is not None:
            filter = waiting.WaitingFilter(text=text)
            rows = [row for row in rows if filter.fits_row(masked_row(row, self._hidden))]
        return Listing(rows, page.total, page.unseen)

    def size(self, queue: str) -> int:
        """How many jobs wait in a queue. Raises NotFound."""
        check_queue_name(queue)
        for info in self._ask(lambda broker: broker.queues(), again=True):
            if info.name == queue:
                return info.pending
        return self._browse(queue, limit=1).total

    def peek(self, queue: str, *, start: int = 0, count: int = 1) -> list[JobRow]:
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

    # -- jobs that have ended, and jobs that wait

    recorded = again.recorded
    run_again = again.run_again
    edit = again.edit

    count_waiting = waiting.count_waiting
    cancel_waiting = waiting.cancel_waiting
    move_waiting = waiting.move_waiting
    discard_waiting = waiting.discard_waiting

    unserved = served.unserved

    # -- queues, and the tenants that share them

    def shared(self) -> dict[str, int]:
        """By queue, how many waiting jobs belong to tenants; queues without such jobs are left out."""
        totals = self._ask(lambda broker: broker.tenants.totals(), again=True)
        return {queue: totals[queue] for queue in sorted(totals) if totals[queue]}

    def tenants(self, queue: str, tenant: str | None = None, *, offset: int = 0, limit: int = 100) -> Listing[Row]:
        """The tenants that have jobs waiting in a queue, those with most first; none for a queue without tenants.

        With `tenant` it is only that one, if it has any. A row has `tenant`, `queue`, `pending` and `share`. With
        thousands of tenants the counts may be seconds old. Raises NotFound for a queue that does not exist.
        """
        check_job_queue(queue)
        found = self._ask(lambda broker: broker.tenants.of(queue), again=True)
        if not found:
            self.size(queue)
        if tenant is not None:
            found = [one for one in found if one.name == tenant]
        return Listing([_tenant_row(queue, one) for one in found[offset : offset + limit]], len(found))

    clients = tenants

    def clear_tenant(self, queue: str, tenant: str) -> int:
        """Remove the jobs of one tenant that wait in a queue; returns how many. Raises NotFound if it has none."""
        check_job_queue(queue)
        count = self._ask(lambda broker: broker.tenants.clear(queue, tenant))
        self._record("clear tenant", queue=queue, count=count, what=tenant)
        return count

    clear_client = clear_tenant

    def pause(self, queue: str, *, by: str = "", reason: str = "") -> None:
        """Let no worker take jobs from a queue until `resume`, across restarts. The queue need not exist yet.

        Running jobs go on. `by` says who did it, and `reason` why: the journal keeps it, and the pages show it to all.
        Raises QueueNameInvalid for "*": `pause_all` is meant.
        """
        check_job_queue(queue)
        if queue == "*":
            raise QueueNameInvalid(
                "queue name '*' is not a pattern here. To pause all queues, say `palermo pause --all` or pause_all()."
            )
        by = by or self._actor.name
        self._ask(lambda broker: broker.pause(queue, by=by))
        self._record("pause", by=by, queue=queue, **({"what": reason} if reason else {}))

    def resume(self, queue: str, *, by: str = "") -> None:
        """End a pause; does nothing to a queue that is not paused."""
        check_job_queue(queue)
        by = by or self._actor.name
        self._ask(lambda broker: broker.resume(queue, by=by))
        self._record("resume", by=by, queue=queue)

    def pause_all(self, *, by: str = "", reason: str = "") -> None:
        """Let no worker take jobs from any queue until `resume_all`, across restarts.

        It holds for workers that start later and queues that are made later. Running jobs go on, and jobs can be
        enqueued. `by` says who did it, and `reason` why, as for `pause`.
        """
        by = by or self._actor.name
        self._ask(lambda broker: broker.pause(EVERY_QUEUE, by=by))
        self._record("pause all", by=by, **({"what": reason} if reason else {}))

    def resume_all(self, *, by: str = "") -> None:
        """End `pause_all`; a queue that was paused by its name stays paused until `resume`."""
        by = by or self._actor.name
        self._ask(lambda broker: broker.resume(EVERY_QUEUE, by=by))
        self._record("resume all", by=by)

    def all_paused(self) -> bool:
        """Whether `pause_all` holds."""
        return self._ask(lambda broker: broker.all_paused(), again=True)

    def purge(self, queue: str) -> int:
        """Remove all jobs that wait in a queue; returns how many. Raises NotFound."""
        check_queue_name(queue)
        count = _none_failed(queue, 0, lambda: self._ask(lambda broker: broker.purge(queue)))
        self._record("purge", queue=queue, count=count)
        return count

    def purge_all(self) -> dict[str, int]:
        """Remove all jobs that wait in all queues but those of failed jobs; returns how many, by queue.

        Running and scheduled jobs stay, and so do failed ones: `discard` removes these.
        """
        removed = {}
        for name in [row["name"] for row in self.queues() if row["pending"] and not is_failed(row["name"])]:
            with suppress(NotFound):  # someone has deleted it meanwhile
                removed[name] = self.purge(name)
        return removed

    def migrate(self, queue: str, kind: str, *, progress: Progress | None = None) -> int:
        """Change a queue's type to "classic", "quorum" or "priority" and keep all in it; returns how many jobs moved.

        Workers and publishers may go on. Interrupted it loses nothing, and called again it goes on. Raises NotFound,
        and BrokerRefused on a broker that has only one type.
        """
        check_queue_name(queue)
        if kind not in MIGRATABLE:
            raise UsageError(f"there is no queue type {kind!r}; the types are {', '.join(MIGRATABLE)}.")
        count = self._ask(lambda broker: broker.migrate(queue, kind, progress=progress))
        self._record("migrate", queue=queue, count=count, what=kind)
        return count

    def delete_queue(self, queue: str) -> int:
        """Delete a queue and the jobs that wait in it; returns how many. Raises NotFound."""
        check_queue_name(queue, controls=True)
        count = _none_failed(queue, 0, lambda: self._ask(lambda broker: broker.delete(queue)))
        self._record("delete queue", queue=queue, count=count)
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

        `job` is a decorated class or function, or a name. Without `queue` it is the job's own queue, or the
        default queue if the job's code is not imported here. If it is imported, the job's hooks before_dequeue
        (which may veto) and after_dequeue run, with the arguments given. Returns how many were taken.
        """
        client, actor = self._client, self._actor
        return dequeuing.dequeue(client, job, args, kwargs, actor=actor, ask=self._ask, queue=queue, progress=progress)

    def count_jobs(
        self,
        job: str,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
        *,
        queue: str | None = None,
    ) -> int:
        """How many waiting jobs `dequeue` would take."""
        return dequeuing.count(self._client, job, args, kwargs, ask=self._ask, queue=queue)

    def queue_of(self, job: str) -> str:
        """The queue of a job by its name: its own if its code is imported here, else the default queue."""
        return dequeuing.queue_of(self._client.settings, job)

    def cancel(self, ids: str | Iterable[str], *, by: str = "") -> list[Row]:
        """Keep jobs from running, or end them where they run; a row for each id: see palermo.inspector.control.cancel.

        Failed jobs stay where they are; `discard` throws them away.
        """
        chosen = [ids] if isinstance(ids, str) else list(dict.fromkeys(ids))
        for id in chosen:
            check_id(id)
        by = by or self._actor.name
        began = clock.now()
        rows = self._ask(lambda broker: cancel(broker, chosen, by=by), again=True)
        self._record("cancel", by=by, ids=chosen, at=began)
        return rows

    def lines(self, id: str, worker: str) -> list[str]:
        """The last 100 lines that the job with this id, which this worker runs, has logged about itself."""
        order = WorkerCommand(action="lines", id=check_id(id), workers=(worker,))
        answers = self._ask(lambda broker: broker.command(order, timeout=_PROMPT), again=True)
        return [str(line) for answer in answers for line in answer.values.get("lines", ())]

    # -- workers

    def worker(self, id: str) -> WorkerUsageRow:
        """The row of one worker, with `memory` and `cpu` as in `usage`, None if it does not say. Raises NotFound."""
        row = next((row for row in self.workers() if row["id"] == id), None)
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
        answers = self._ask(lambda broker: broker.command(command, timeout=_PROMPT), again=True)
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

    def start_worker(self, modules: Sequence[str], **options: Any) -> "WorkerHandle":
        """Start a worker on this broker in a process of its own; options as for `palermo.start_worker`."""
        from palermo.worker.handle import start_worker

        return start_worker(modules, settings=self._client.settings, **options)

    def stop_worker(self, worker: "WorkerHandle | str", timeout: Duration | None = None) -> int | None:
        """Stop a worker that start_worker started, once its running jobs have ended; returns its exit code.

        Any other worker is named by its id: it is told to stop, as by `control`, and None is returned at once. Raises
        NotFound if it is not there.
        """
        if isinstance(worker, str):
            self.control("stop", worker)
            return None
        return worker.stop(timeout)

    # -- scheduled jobs

    scheduled = scheduled_jobs.scheduled
    scheduled_with = scheduled_jobs.scheduled_with
    cancel_scheduled = scheduled_jobs.cancel_scheduled
    run_now = scheduled_jobs.run_now
    reschedule = scheduled_jobs.reschedule
    retries = scheduled_jobs.retries
    retry_now = scheduled_jobs.retry_now
    give_up = scheduled_jobs.give_up

    # -- keys of unique jobs, limits

    limits = keys.limits
    unique_keys = keys.unique_keys
    free_keys = keys.free_keys
    stray_keys = keys.stray_keys

    # -- recurring jobs

    recurring = recurring_jobs.recurring
    put_recurring = recurring_jobs.put_recurring
    remove_recurring = recurring_jobs.remove_recurring
    switch_recurring = recurring_jobs.switch_recurring
    run_recurring = recurring_jobs.run_recurring

    # -- events

    topics = events.topics
    wiring = events.wiring
    replay = events.replay
    unsubscribe = events.unsubscribe

    # -- history: a call reads as much of the journal as it needs, some 100,000 records a second

    history = job_history.history
    life = job_history.life
    statistics = job_history.statistics
    audit = job_history.audit

    queues_info = Context.queues
    workers_info = Context.workers
    jobs_in_queue = jobs
    retry_failed_job = requeue
    purge_queue = purge

    def retry_all(self, *, progress: Progress | None = None) -> list[TakenJob]:
        """Run all failed jobs again; the same as ``requeue(FailedFilter())``."""
        return self.requeue(failed_jobs.ALL, progress=progress)

    def _browse(self, queue: str, *, offset: int = 0, limit: int = 100, newest: bool = False) -> Page:
        most = self._max_shown_bytes

        async def browse(broker: Broker) -> Page:
            return await broker.browse(queue, offset=offset, limit=limit, newest=newest, max_body=most)

        return _none_failed(queue, Page(messages=(), total=0), lambda: self._ask(browse, again=True))


def _none_failed(queue: str, none: T, ask: Callable[[], T]) -> T:
    """What the broker answers; `none` if this queue of failed jobs is missing, as it is until a job has failed."""
    try:
        return ask()
    except NotFound:
        if is_failed(queue):
            return none
        raise


def _tenant_row(queue: str, one: Tenant) -> Row:
    return {"tenant": printable(one.name), "queue": printable(queue), "pending": one.pending, "share": one.share}
