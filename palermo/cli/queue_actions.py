"""`palermo purge`, `delete`, `dequeue` and `migrate`: remove waiting jobs, or move them."""

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from glob import escape

import click

from palermo.cli.command_group import Context
from palermo.cli.completion import complete_job, complete_queue
from palermo.cli.enqueue import parse_args, parse_kwargs
from palermo.cli.options import broker_options, query_options, yes_option
from palermo.cli.output import ask_to_confirm, confirm, misuse, note, print_json, progress
from palermo.client.actor import Actor
from palermo.contract.scheduled import ScheduledFilter
from palermo.core.text import count, safe
from palermo.core.topology import MIGRATABLE, PRIORITY, check_job_queue, check_queue_name, has_controls, is_failed
from palermo.errors import NotFound, UsageError
from palermo.inspector.inspector import Inspector
from palermo.jobs.user_modules import import_modules


@click.command()
@click.argument("queue", required=False, shell_complete=complete_queue)
@click.option("--tenant", "--client", "tenant", metavar="NAME", help="Only those of this tenant, or client.")
@click.option("--all", "everywhere", is_flag=True, help="In all queues, but not the failed jobs.")
@yes_option
@query_options
@click.pass_obj
def purge(
    context: Context, /, queue: str | None, tenant: str | None, everywhere: bool, yes: bool, as_json: bool
) -> None:
    """Remove all jobs that wait in QUEUE, or those of one tenant; what a worker holds is left to it."""
    if everywhere:
        if queue is not None or tenant is not None:
            raise misuse("give a QUEUE or --all, not both")
        _purge_all(context, yes=yes, as_json=as_json)
        return
    if queue is None:
        raise misuse("say which QUEUE, or --all for all queues")
    check_queue_name(queue)
    ask_to_confirm(yes=yes)
    inspector = context.inspector()
    if tenant is not None:
        if not yes:
            confirm(f"Remove the waiting jobs of {tenant!r} from queue {queue!r} for good?", yes=yes)
        _say_removed({queue: inspector.tenants.clear(queue, tenant)}, as_json=as_json, of=f" of {safe(tenant)}")
        return
    if not yes:
        confirm(f"Remove {count(inspector.queues.size(queue), 'waiting job')} from queue {queue!r} for good?", yes=yes)
    _say_removed({queue: inspector.queues.purge(queue)}, as_json=as_json)


def _say_removed(removed: Mapping[str, int], *, as_json: bool, of: str = "") -> None:
    """Print how many jobs were removed from each queue."""
    if as_json:
        print_json([{"queue": queue, "removed": jobs} for queue, jobs in removed.items()])
        return
    for queue, jobs in removed.items():
        click.echo(f"removed {count(jobs, 'job')}{of} from queue {safe(queue)}.")
    if not removed:
        click.echo("no job waits in any queue.")


def _purge_all(context: Context, *, yes: bool, as_json: bool) -> None:
    ask_to_confirm(yes=yes)
    inspector = context.inspector()
    if not yes:
        waiting = [row for row in inspector.queues.list() if not is_failed(row["name"])]
        total = count(sum(row["pending"] for row in waiting), "waiting job")
        confirm(f"Remove {total} from {count(len(waiting), 'queue')} for good?", yes=yes)
    _say_removed(inspector.queues.purge_all(), as_json=as_json)


@click.command()
@click.argument("queue", shell_complete=complete_queue)
@yes_option
@broker_options
@click.pass_obj
def delete(context: Context, /, queue: str, yes: bool) -> None:
    """Remove QUEUE and the jobs that wait in it. A publisher or worker that needs it makes it again."""
    check_queue_name(queue, controls=True)
    ask_to_confirm(yes=yes)
    inspector = context.inspector()
    if not yes:
        # The inspector cannot look into a queue whose name no queue may have.
        waiting = "all jobs" if has_controls(queue) else count(inspector.queues.size(queue), "waiting job")
        confirm(f"Remove queue {queue!r} with {waiting} for good?", yes=yes)
    click.echo(f"removed queue {safe(queue)} with {count(inspector.queues.delete(queue), 'job')}.")


@click.command()
@click.argument("job", shell_complete=complete_job)
@click.option("--args", "args_text", metavar="JSON", help="Only with these positional arguments, a JSON array.")
@click.option("--kwargs", "kwargs_text", metavar="JSON", help="Only with these named arguments, a JSON object.")
@click.option("-q", "--queue", metavar="QUEUE", shell_complete=complete_queue, help="The queue to take them from.")
@yes_option
@broker_options
@click.pass_obj
def dequeue(
    context: Context, /, job: str, args_text: str | None, kwargs_text: str | None, queue: str | None, yes: bool
) -> None:
    """Take waiting jobs named JOB out of their queue: all of them, or those with exactly these arguments.

    Jobs that are scheduled do not wait in the queue yet: it says how many there are, and `palermo scheduled cancel`
    cancels them.
    """
    args, kwargs = parse_args(args_text), parse_kwargs(kwargs_text)
    ask_to_confirm(yes=yes)
    if queue is not None:
        check_job_queue(queue)
    client = context.client()
    import_modules(client.settings.imports)
    inspector = Inspector(client, Actor.here("cli"))
    queue = queue or inspector.jobs.queue_of(job)
    later = inspector.scheduled.ids_with(ScheduledFilter(queue=escape(queue), job=escape(job)), args, kwargs)
    removed = 0
    # A queue whose jobs are all scheduled need not be there yet.
    with suppress(NotFound) if later else nullcontext():
        if not yes:
            waiting = inspector.jobs.count_matching(job, args, kwargs, queue=queue)
            if waiting:
                confirm(f"Remove {count(waiting, 'waiting job')} {job} from queue {queue!r} for good?", yes=yes)
        with progress("dequeue") as show:
            removed = inspector.jobs.dequeue(job, args, kwargs, queue=queue, progress=show)
    click.echo(f"removed {count(removed, 'job')} from queue {safe(queue)}.")
    same = "".join(
        f" --{name} JSON" for name, text in (("args", args_text), ("kwargs", kwargs_text)) if text is not None
    )
    hint = f"scheduled and still to run: `palermo scheduled cancel --all --job {job}{same}` cancels them"
    if not removed:
        but = f" {count(len(later), 'such job')} {hint}." if later else ""
        raise NotFound(f"no such job {job} waits in queue {queue!r}.{but}")
    if later:
        note(f"{count(len(later), 'such job')} {hint}.")


@click.command()
@click.argument("queue", shell_complete=complete_queue)
@click.option(
    "--type",
    "kind",
    type=click.Choice(MIGRATABLE),
    required=True,
    help="What it is to be; priority is classic with priorities.",
)
@yes_option
@broker_options
@click.pass_obj
def migrate(context: Context, /, queue: str, kind: str, yes: bool) -> None:
    """Make QUEUE one of another type, with all jobs in it, while workers and publishers go on.

    Set queue_type first, so that no program makes the queue with its old type. A classic queue gets
    priorities, or loses them, by the types priority and classic. If this command is interrupted or killed,
    nothing is lost: run it again, and it goes on.
    """
    check_queue_name(queue)
    if (scheme := context.settings().address.scheme) not in ("amqp", "amqps"):
        where = "an SQLite file" if scheme == "sqlite" else "Redis"
        raise UsageError(f"queues in {where} have no types: there is nothing to migrate.")
    ask_to_confirm(yes=yes)
    inspector = context.inspector()
    if not yes:
        waiting = count(inspector.queues.size(queue), "waiting job")
        confirm(f"Replace queue {queue!r} by {_with_article(kind)} and move {waiting}?", yes=yes)
    with progress("migrate") as show:
        moved = inspector.queues.migrate(queue, kind, progress=show)
    click.echo(f"queue {safe(queue)} is {_with_article(kind)}, {count(moved, 'job')} moved.")


def _with_article(kind: str) -> str:
    return "a classic queue with priorities" if kind == PRIORITY else f"a {kind} queue"
