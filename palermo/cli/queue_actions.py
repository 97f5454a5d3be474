"""`palermo purge`, `delete`, `dequeue` and `migrate`: remove waiting jobs, or move them."""

import click

from palermo.cli.command_group import Context
from palermo.cli.completion import complete_job, complete_queue
from palermo.cli.enqueue import parse_args, parse_kwargs
from palermo.cli.options import broker_options, yes_option
from palermo.cli.output import ask_to_confirm, confirm, progress
from palermo.client.actor import Actor
from palermo.core.text import count, safe
from palermo.core.topology import MIGRATABLE, PRIORITY, check_job_queue, check_queue_name, has_controls
from palermo.errors import NotFound, UsageError
from palermo.inspector.inspector import Inspector
from palermo.jobs.user_modules import import_modules


@click.command()
@click.argument("queue", shell_complete=complete_queue)
@click.option("--client", "tenant", metavar="NAME", help="Only those of this client, or tenant.")
@yes_option
@broker_options
@click.pass_obj
def purge(context: Context, /, queue: str, tenant: str | None, yes: bool) -> None:
    """Remove all jobs that wait in QUEUE, or those of one client; what a worker holds is left to it."""
    check_queue_name(queue)
    ask_to_confirm(yes=yes)
    inspector = context.inspector()
    if tenant is not None:
        if not yes:
            confirm(f"Remove the waiting jobs of {tenant!r} from queue {queue!r} for good?", yes=yes)
        removed = inspector.clear_client(queue, tenant)
        click.echo(f"removed {count(removed, 'job')} of {safe(tenant)} from queue {safe(queue)}.")
        return
    if not yes:
        confirm(f"Remove {count(inspector.size(queue), 'waiting job')} from queue {queue!r} for good?", yes=yes)
    removed = inspector.purge(queue)
    click.echo(f"removed {count(removed, 'job')} from queue {safe(queue)}.")


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
        waiting = "all jobs" if has_controls(queue) else count(inspector.size(queue), "waiting job")
        confirm(f"Remove queue {queue!r} with {waiting} for good?", yes=yes)
    removed = inspector.delete_queue(queue)
    click.echo(f"removed queue {safe(queue)} with {count(removed, 'job')}.")


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
    """Take waiting jobs named JOB out of their queue: all of them, or those with exactly these arguments."""
    args, kwargs = parse_args(args_text), parse_kwargs(kwargs_text)
    ask_to_confirm(yes=yes)
    if queue is not None:
        check_job_queue(queue)
    client = context.client()
    import_modules(client.settings.imports)
    inspector = Inspector(client, Actor.here("cli"))
    queue = queue or inspector.queue_of(job)
    if not yes:
        waiting = inspector.count_jobs(job, args, kwargs, queue=queue)
        if waiting:
            confirm(f"Remove {count(waiting, 'waiting job')} {job} from queue {queue!r} for good?", yes=yes)
    with progress("dequeue") as show:
        removed = inspector.dequeue(job, args, kwargs, queue=queue, progress=show)
    click.echo(f"removed {count(removed, 'job')} from queue {safe(queue)}.")
    if not removed:
        raise NotFound(f"no such job {job} waits in queue {queue!r}.")


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
    if not context.settings().address.hosts:
        raise UsageError("queues in an SQLite file have no types: there is nothing to migrate.")
    ask_to_confirm(yes=yes)
    inspector = context.inspector()
    if not yes:
        waiting = count(inspector.size(queue), "waiting job")
        confirm(f"Replace queue {queue!r} by {_with_article(kind)} and move {waiting}?", yes=yes)
    with progress("migrate") as show:
        moved = inspector.migrate(queue, kind, progress=show)
    click.echo(f"queue {safe(queue)} is {_with_article(kind)}, {count(moved, 'job')} moved.")


def _with_article(kind: str) -> str:
    return "a classic queue with priorities" if kind == PRIORITY else f"a {kind} queue"
