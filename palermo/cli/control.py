"""The commands that change queues, jobs and workers: `palermo pause`, `resume`, `purge`, `delete`, `dequeue`, `move`,
`migrate`, `cancel` and `control`.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import click

from palermo.cli.bulk import run_on_jobs
from palermo.cli.command_group import FAILED, Context, misuse, note
from palermo.cli.completion import complete_job, complete_queue, complete_worker
from palermo.cli.job_ids import LIVE_JOBS, WAITING_JOBS, chosen_jobs, whole_ids
from palermo.cli.options import (
    arguments_options,
    broker_options,
    filter_options,
    query_options,
    selection_options,
    yes_option,
)
from palermo.cli.output import Column, confirm, field, print_rows, printed_json, progress, wants_json
from palermo.contract.rows import Row
from palermo.core.text import count, exactly, safe
from palermo.core.topology import (
    MIGRATABLE,
    PRIORITY,
    check_job_queue,
    check_new_queue,
    check_queue_name,
    has_controls,
    is_failed,
)
from palermo.errors import NotFound, QueueNameInvalid, UsageError
from palermo.inspector.inspector import Inspector
from palermo.inspector.jobs import check_move
from palermo.inspector.workers import ACTIONS, choose
from palermo.jobs.modules import import_modules
from palermo.views.filter import JobFilter

_CANCELLED = {
    "marked": "marked; if it is still waiting, it will not run",
    "cancelled": "cancelled while running on {worker}",
    "cancelling": "cancelled while running on {worker}, which kills it if it does not end by itself",
    "done": "too late: it has finished on {worker}",
    "failed": "too late: it has failed on {worker}",
    "interrupted": "marked; {worker} requeued it, but it will not run again",
}


@click.command()
@click.argument("queues", nargs=-1, metavar="[QUEUE...]", shell_complete=complete_queue)
@click.option("--all", "every", is_flag=True, help="All queues, including those added later.")
@click.option("--reason", metavar="TEXT", default="", help="Reason to show on the web pages and in the journal.")
@query_options
@click.pass_obj
def pause(context: Context, /, queues: tuple[str, ...], every: bool, reason: str) -> None:
    """Pause QUEUE, even across restarts. No worker takes jobs from it until you run `palermo resume QUEUE`.

    Running jobs continue, and jobs can still be enqueued. --all pauses all queues, including those added later. To end
    that, run `palermo resume --all`.
    """
    _check_named(queues, every=every, what="queues")
    inspector = context.inspector()
    if every:
        inspector.queues.pause_all(reason=reason)
        _print_all(inspector.queues.list(), "paused all queues")
        return
    known = {row["name"] for row in inspector.queues.list()}
    for queue in queues:
        if queue not in known and queue != "*":  # for "*" the inspector raises an error with advice
            check_new_queue(queue)
    for queue in queues:
        inspector.queues.pause(queue, reason=reason)
        if queue not in known:
            note(f"queue {queue!r} does not exist yet. It will be paused when it is created.")
    rows = [row for row in inspector.queues.list() if row["name"] in queues]
    if printed_json(rows):
        return
    for row in rows:
        click.echo(
            f"paused queue {safe(row['name'])}: {count(row['pending'], 'job')} pending,"
            f" {row['in_progress']:,} in progress."
        )


@click.command()
@click.argument("queues", nargs=-1, metavar="[QUEUE...]", shell_complete=complete_queue)
@click.option("--all", "every", is_flag=True, help="Undo `palermo pause --all`.")
@query_options
@click.pass_obj
def resume(context: Context, /, queues: tuple[str, ...], every: bool) -> None:
    """Resume QUEUE. With --all, undo `palermo pause --all`.

    After --all, queues that were paused by name remain paused until you resume them by name.
    """
    _check_named(queues, every=every, what="queues")
    inspector = context.inspector()
    if every:
        was_paused = inspector.queues.all_paused()
        inspector.queues.resume_all()
        rows = inspector.queues.list()
        done = "resumed all queues" if was_paused else "nothing changed, because all queues were not paused"
        _print_all(rows, done)
        if still := [safe(row["name"]) for row in rows if row["paused"]]:
            note(f"still paused by name: {', '.join(still)}; `palermo resume {still[0]}` resumes it.")
        return
    before = {row["name"]: row for row in inspector.queues.list()}
    if "*" in queues and "*" not in before:
        raise QueueNameInvalid(
            "`palermo resume` takes no patterns, and no queue is named '*'. Use `palermo resume --all` to resume all"
            " queues."
        )
    for queue in queues:
        inspector.queues.resume(queue)
    unknown = [queue for queue in queues if queue not in before]
    all_paused = inspector.queues.all_paused()
    if not printed_json([{**before[queue], "paused": all_paused} for queue in queues if queue in before]):
        for queue in queues:
            if queue in before:
                was = "resumed queue {}." if before[queue]["paused"] else "queue {} was not paused."
                click.echo((was if not all_paused else "queue {} is not paused by name.").format(safe(queue)))
    if all_paused:
        note("all queues are paused until `palermo resume --all`.")
    if unknown:
        raise NotFound(f"no queue {unknown[0]!r}; `palermo queues` lists the queues.")


def _check_named(names: Sequence[str], *, every: bool, what: str) -> None:
    """Raise unless the user gave either valid names or --all."""
    if bool(names) == every:
        raise misuse(
            f"{what} cannot be combined with --all" if every else f"no {what} given; name {what} or pass --all"
        )
    if what == "queues":
        for queue in names:
            check_job_queue(queue)


def _print_all(rows: Sequence[Row], done: str) -> None:
    if printed_json(list(rows)):
        return
    jobs = [row for row in rows if not is_failed(row["name"])]
    pending, running = (sum(row[name] for row in jobs) for name in ("pending", "in_progress"))
    click.echo(f"{done}: {count(pending, 'job')} pending, {running:,} in progress.")


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@query_options
@click.pass_obj
def cancel(context: Context, /, ids: tuple[str, ...]) -> None:
    """Cancel jobs: remove waiting jobs and stop running ones.

    An unknown id is not an error, because waiting jobs are not looked up. To remove failed jobs, use `palermo failed
    discard`.
    """
    rows = context.inspector().jobs.cancel(whole_ids(context, ids, LIVE_JOBS))
    if printed_json(rows):
        return
    for row in rows:
        outcome = _CANCELLED.get(row["state"], str(row["state"])).format(worker=row["worker"])
        click.echo(f"{safe(row['id'])}: {safe(outcome)}.")


@click.command()
@click.argument("action", type=click.Choice(ACTIONS))
@click.argument("workers", nargs=-1, metavar="[WORKER...]", shell_complete=complete_worker)
@click.option("--all", "every", is_flag=True, help="All workers.")
@yes_option
@query_options
@click.pass_obj
def control(context: Context, /, action: str, workers: tuple[str, ...], every: bool, yes: bool) -> None:
    """Send a command to workers, and print the reply of each.

    \b
    quiet   take no more jobs until resume; running jobs continue
    resume  take jobs again, after quiet and after the signals USR2 and TSTP
    stop    finish the running jobs within the shutdown timeout, and exit
    kill    kill the running jobs immediately, requeue them, and exit
    stack   print the stacks of the worker and its jobs, without stopping them

    WORKER is an id from `palermo workers`, a prefix of one, or a pid.
    """
    _check_named(workers, every=every, what="workers")
    inspector = context.inspector()
    if action == "kill" or (action == "stop" and every):
        confirm(lambda: _question_about_workers(action.capitalize(), inspector.workers.list(), workers), yes=yes)
    rows = inspector.workers.control(action, None if every else workers)
    if action == "stack" and not wants_json():
        _print_stacks(rows)
    else:
        columns: list[Column] = [field("Worker"), ("Answer", lambda row: _answer_text(action, row))]
        print_rows(rows, columns, none="no workers.")
    if not all(row["answered"] for row in rows):
        raise click.exceptions.Exit(FAILED)


def _question_about_workers(verb: str, alive: Sequence[Row], named: Sequence[str]) -> str:
    """Return the question before a command that ends some or all workers; "" if none is running."""
    chosen = choose({row["id"]: row["pid"] or 0 for row in alive}, named) if named else [row["id"] for row in alive]
    busy = sum(len(row["jobs"]) for row in alive if row["id"] in chosen)
    return f"{verb} {count(len(chosen), 'worker')}, with {count(busy, 'job')} running?" if chosen else ""


def _answer_text(action: str, row: Row) -> str:
    if not row["answered"]:
        return "no answer; it may still execute the command"
    if "error" in row:
        return f"failed: {row['error']}"
    if "jobs" not in row:
        return str(row["state"])
    jobs = count(row["jobs"], "job")
    return f"{row['state']}: {'killed' if action == 'kill' else 'finishes'} {jobs}"


def _print_stacks(rows: Sequence[Row]) -> None:
    if not rows:
        note("no workers.")
    for row in rows:
        click.echo(f"== {safe(row['worker'])}")
        if "text" not in row:
            click.echo(_answer_text("stack", row))
            continue
        click.echo(safe(str(row["text"]), lines=True))


# -- remove or move waiting jobs


@click.command()
@click.argument("queue", required=False, shell_complete=complete_queue)
@click.option("--tenant", metavar="NAME", help="Only jobs of this tenant.")
@click.option("--all", "everywhere", is_flag=True, help="All queues except those of failed jobs.")
@yes_option
@query_options
@click.pass_obj
def purge(context: Context, /, queue: str | None, tenant: str | None, everywhere: bool, yes: bool) -> None:
    """Remove all waiting jobs from QUEUE, or only those of one tenant. Jobs that a worker has already taken are not
    removed.
    """
    if everywhere is (queue is not None) or (everywhere and tenant is not None):
        raise misuse(
            "--all cannot be combined with QUEUE or --tenant"
            if everywhere
            else "no queue given; name a QUEUE or pass --all"
        )
    inspector = context.inspector()
    if queue is None:
        confirm(lambda: _question_about_all(inspector), yes=yes)
        _print_removed(inspector.queues.purge_all())
        return
    check_queue_name(queue)
    if tenant is not None:
        confirm(lambda: f"Remove the waiting jobs of {tenant!r} from queue {queue!r} for good?", yes=yes)
        _print_removed({queue: inspector.tenants.clear(queue, tenant)}, of=f" of {safe(tenant)}")
        return
    confirm(lambda: f"Remove {_waiting(inspector, queue)} from queue {queue!r} for good?", yes=yes)
    _print_removed({queue: inspector.queues.purge(queue)})


def _waiting(inspector: Inspector, queue: str) -> str:
    return count(inspector.queues.size(queue), "waiting job")


def _question_about_all(inspector: Inspector) -> str:
    waiting = [row for row in inspector.queues.list() if not is_failed(row["name"])]
    total = count(sum(row["pending"] for row in waiting), "waiting job")
    return f"Remove {total} from {count(len(waiting), 'queue')} for good?"


def _print_removed(removed: Mapping[str, int], *, of: str = "") -> None:
    """Print how many jobs were removed from each queue."""
    if printed_json([{"queue": queue, "removed": jobs} for queue, jobs in removed.items()]):
        return
    for queue, jobs in removed.items():
        click.echo(f"removed {count(jobs, 'job')}{of} from queue {safe(queue)}.")
    if not removed:
        click.echo("no queue has waiting jobs.")


@click.command()
@click.argument("queue", shell_complete=complete_queue)
@yes_option
@broker_options
@click.pass_obj
def delete(context: Context, /, queue: str, yes: bool) -> None:
    """Remove QUEUE and its waiting jobs. A publisher or worker that needs it creates it again."""
    check_queue_name(queue, controls=True)
    inspector = context.inspector()

    def question() -> str:
        # The inspector cannot read a queue with an invalid name.
        waiting = "all jobs" if has_controls(queue) else _waiting(inspector, queue)
        return f"Remove queue {queue!r} with {waiting} for good?"

    confirm(question, yes=yes)
    click.echo(f"removed queue {safe(queue)} with {count(inspector.queues.delete(queue), 'job')}.")


@click.command()
@click.argument("job", shell_complete=complete_job)
@arguments_options("Only with these")
@click.option("-q", "--queue", metavar="QUEUE", shell_complete=complete_queue, help="Queue to remove the jobs from.")
@yes_option
@broker_options
@click.pass_obj
def dequeue(
    context: Context, /, job: str, args: list[Any] | None, kwargs: dict[str, Any] | None, queue: str | None, yes: bool
) -> None:
    """Remove waiting jobs named JOB from their queue: all of them, or only those with exactly the given arguments.

    Scheduled jobs are not removed, but the command prints their number. To cancel them, use `palermo scheduled cancel`.
    """
    if queue is not None:
        check_job_queue(queue)
    import_modules(context.client().settings.imports)
    inspector = context.inspector()
    chosen = queue or inspector.jobs.queue_of(job)
    later = inspector.scheduled.ids_with(JobFilter(queue=exactly(chosen), job=exactly(job)), args, kwargs)
    removed = 0
    # If all its jobs are scheduled, the queue possibly doesn't exist yet.
    with suppress(NotFound) if later else nullcontext():
        confirm(lambda: _question_about(inspector, job, args, kwargs, chosen), yes=yes)
        with progress("dequeue") as show:
            removed = inspector.jobs.dequeue(job, args, kwargs, queue=chosen, progress=show)
    click.echo(f"removed {count(removed, 'job')} from queue {safe(chosen)}.")
    same = "".join(f" --{name} JSON" for name, value in (("args", args), ("kwargs", kwargs)) if value is not None)
    hint = (
        f"cancel {count(len(later), 'matching scheduled job')}, run"
        f" `palermo scheduled cancel --all --job '={job}'{same}`."
    )
    if not removed:
        but = f" To {hint}" if later else ""
        raise NotFound(f"no matching job {job} is waiting in queue {chosen!r}.{but}")
    if later:
        note(f"to {hint}")


def _question_about(inspector: Inspector, job: str, args: Any, kwargs: Any, queue: str) -> str:
    waiting = inspector.jobs.count_matching(job, args, kwargs, queue=queue)
    return f"Remove {count(waiting, 'waiting job')} {job} from queue {queue!r} for good?" if waiting else ""


@click.command()
@click.argument("queue", shell_complete=complete_queue)
@selection_options(filter_options("job", "tenant"))
@click.option("--to", required=True, metavar="QUEUE", shell_complete=complete_queue, help="Queue to move the jobs to.")
@click.pass_obj
def move(
    context: Context, /, queue: str, ids: tuple[str, ...], every: bool, to: str, yes: bool, **filters: str | None
) -> None:
    """Move the waiting jobs of QUEUE with these ids to the end of another queue; with --all, all that match the
    filters.

    Running and scheduled jobs are not moved. If this command is killed, no job is lost, but on RabbitMQ up to 100 jobs
    may be in both queues and run twice, or more if RabbitMQ was killed too. Run it again to move the remaining jobs.
    """
    which = chosen_jobs(context, WAITING_JOBS, filters, ids=ids, every=every)
    check_move(queue, to)
    inspector = context.inspector()
    unserved = "" if yes else inspector.queues.unserved(to)
    if every or unserved:
        confirm(lambda: _question_about_move(inspector, queue, which, to), yes=yes, warning=unserved)
    run_on_jobs("move", "moved", partial(inspector.jobs.move, queue), which, of="waiting", to=to)


def _question_about_move(inspector: Inspector, queue: str, which: tuple[str, ...] | JobFilter, to: str) -> str:
    if not isinstance(which, JobFilter):
        number = len(which)
    elif which.everything:
        number = inspector.queues.size(queue)
    else:
        number = inspector.jobs.count(queue, which)
    filtered = f" with {which}" if isinstance(which, JobFilter) and not which.everything else ""
    return f"Move {count(number, 'waiting job')}{filtered} from queue {queue!r} to {to!r}?" if number else ""


@click.command()
@click.argument("queue", shell_complete=complete_queue)
@click.option(
    "--type",
    "kind",
    type=click.Choice(MIGRATABLE),
    required=True,
    help="New type; priority is classic with priorities.",
)
@yes_option
@broker_options
@click.pass_obj
def migrate(context: Context, /, queue: str, kind: str, yes: bool) -> None:
    """Change the type of QUEUE and keep its jobs. Workers and publishers can keep running.

    Set queue_type first, so that no program creates the queue with its old type. For a classic queue, the type priority
    adds priorities and the type classic removes them. If this command is interrupted, no job is lost. Run it again to
    continue.
    """
    check_queue_name(queue)
    if (scheme := context.client().settings.address.scheme) not in ("amqp", "amqps"):
        where = "an SQLite file" if scheme == "sqlite" else "Redis"
        raise UsageError(f"queues in {where} have no types, so there is nothing to migrate.")
    inspector = context.inspector()
    confirm(lambda: f"Replace queue {queue!r} by {_with_article(kind)} and move {_waiting(inspector, queue)}?", yes=yes)
    with progress("migrate") as show:
        moved = inspector.queues.migrate(queue, kind, progress=show)
    click.echo(f"queue {safe(queue)} is {_with_article(kind)}, {count(moved, 'job')} moved.")


def _with_article(kind: str) -> str:
    return "a classic queue with priorities" if kind == PRIORITY else f"a {kind} queue"
