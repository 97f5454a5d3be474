"""`palermo purge`, `delete`, `dequeue` and `migrate`: remove waiting jobs, or move them."""

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from typing import Any

import click

from palermo.cli.command_group import Context
from palermo.cli.completion import complete_job, complete_queue
from palermo.cli.enqueue import parse_args, parse_kwargs
from palermo.cli.options import broker_options, query_options, yes_option
from palermo.cli.output import confirm, misuse, note, printed_json, progress
from palermo.client.actor import Actor
from palermo.core.text import count, exactly, safe
from palermo.core.topology import MIGRATABLE, PRIORITY, check_job_queue, check_queue_name, has_controls, is_failed
from palermo.errors import NotFound, UsageError
from palermo.inspector.inspector import Inspector
from palermo.jobs.user_modules import import_modules
from palermo.views.filter import JobFilter


@click.command()
@click.argument("queue", required=False, shell_complete=complete_queue)
@click.option("--tenant", metavar="NAME", help="Only jobs of this tenant.")
@click.option("--all", "everywhere", is_flag=True, help="All queues except those of failed jobs.")
@yes_option
@query_options
@click.pass_obj
def purge(context: Context, /, queue: str | None, tenant: str | None, everywhere: bool, yes: bool) -> None:
    """Remove all waiting jobs of QUEUE, or those of one tenant. Jobs that a worker holds stay."""
    if everywhere is (queue is not None) or (everywhere and tenant is not None):
        raise misuse("give a QUEUE or --all" + (", not both" if everywhere else ""))
    inspector = context.inspector()
    if queue is None:
        confirm(lambda: _question_about_all(inspector), yes=yes)
        _say_removed(inspector.queues.purge_all())
        return
    check_queue_name(queue)
    if tenant is not None:
        confirm(lambda: f"Remove the waiting jobs of {tenant!r} from queue {queue!r} for good?", yes=yes)
        _say_removed({queue: inspector.tenants.clear(queue, tenant)}, of=f" of {safe(tenant)}")
        return
    confirm(lambda: f"Remove {_waiting(inspector, queue)} from queue {queue!r} for good?", yes=yes)
    _say_removed({queue: inspector.queues.purge(queue)})


def _waiting(inspector: Inspector, queue: str) -> str:
    return count(inspector.queues.size(queue), "waiting job")


def _question_about_all(inspector: Inspector) -> str:
    waiting = [row for row in inspector.queues.list() if not is_failed(row["name"])]
    total = count(sum(row["pending"] for row in waiting), "waiting job")
    return f"Remove {total} from {count(len(waiting), 'queue')} for good?"


def _say_removed(removed: Mapping[str, int], *, of: str = "") -> None:
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
    """Remove QUEUE with its waiting jobs. A publisher or worker that needs it creates it again."""
    check_queue_name(queue, controls=True)
    inspector = context.inspector()

    def question() -> str:
        # The inspector cannot read a queue whose name no queue may have.
        waiting = "all jobs" if has_controls(queue) else _waiting(inspector, queue)
        return f"Remove queue {queue!r} with {waiting} for good?"

    confirm(question, yes=yes)
    click.echo(f"removed queue {safe(queue)} with {count(inspector.queues.delete(queue), 'job')}.")


@click.command()
@click.argument("job", shell_complete=complete_job)
@click.option("--args", "args_text", metavar="JSON", help="Only with these positional arguments, a JSON array.")
@click.option("--kwargs", "kwargs_text", metavar="JSON", help="Only with these named arguments, a JSON object.")
@click.option("-q", "--queue", metavar="QUEUE", shell_complete=complete_queue, help="The queue to remove them from.")
@yes_option
@broker_options
@click.pass_obj
def dequeue(
    context: Context, /, job: str, args_text: str | None, kwargs_text: str | None, queue: str | None, yes: bool
) -> None:
    """Remove waiting jobs named JOB from their queue: all of them, or those with exactly these arguments.

    Scheduled jobs do not wait in the queue yet. The command prints how many there are, and `palermo scheduled cancel`
    cancels them.
    """
    args, kwargs = parse_args(args_text), parse_kwargs(kwargs_text)
    if queue is not None:
        check_job_queue(queue)
    client = context.client()
    import_modules(client.settings.imports)
    inspector = Inspector(client, Actor.here("cli"))
    chosen = queue or inspector.jobs.queue_of(job)
    later = inspector.scheduled.ids_with(JobFilter(queue=exactly(chosen), job=exactly(job)), args, kwargs)
    removed = 0
    # A queue whose jobs are all scheduled need not exist yet.
    with suppress(NotFound) if later else nullcontext():
        confirm(lambda: _question_about(inspector, job, args, kwargs, chosen), yes=yes)
        with progress("dequeue") as show:
            removed = inspector.jobs.dequeue(job, args, kwargs, queue=chosen, progress=show)
    click.echo(f"removed {count(removed, 'job')} from queue {safe(chosen)}.")
    same = "".join(
        f" --{name} JSON" for name, text in (("args", args_text), ("kwargs", kwargs_text)) if text is not None
    )
    hint = f"scheduled and still to run: `palermo scheduled cancel --all --job '={job}'{same}` cancels them"
    if not removed:
        but = f" {count(len(later), 'such job')} {hint}." if later else ""
        raise NotFound(f"no such job {job} waits in queue {chosen!r}.{but}")
    if later:
        note(f"{count(len(later), 'such job')} {hint}.")


def _question_about(inspector: Inspector, job: str, args: Any, kwargs: Any, queue: str) -> str:
    waiting = inspector.jobs.count_matching(job, args, kwargs, queue=queue)
    return f"Remove {count(waiting, 'waiting job')} {job} from queue {queue!r} for good?" if waiting else ""


@click.command()
@click.argument("queue", shell_complete=complete_queue)
@click.option(
    "--type",
    "kind",
    type=click.Choice(MIGRATABLE),
    required=True,
    help="The new type; priority is classic with priorities.",
)
@yes_option
@broker_options
@click.pass_obj
def migrate(context: Context, /, queue: str, kind: str, yes: bool) -> None:
    """Change the type of QUEUE and keep its jobs, while workers and publishers continue.

    Set queue_type first, so that no program creates the queue with its old type. The types priority and classic add
    priorities to a classic queue, or remove them. If this command is interrupted or killed, nothing is lost: run it
    again to continue.
    """
    check_queue_name(queue)
    if (scheme := context.settings().address.scheme) not in ("amqp", "amqps"):
        where = "an SQLite file" if scheme == "sqlite" else "Redis"
        raise UsageError(f"queues in {where} have no types: there is nothing to migrate.")
    inspector = context.inspector()
    confirm(lambda: f"Replace queue {queue!r} by {_with_article(kind)} and move {_waiting(inspector, queue)}?", yes=yes)
    with progress("migrate") as show:
        moved = inspector.queues.migrate(queue, kind, progress=show)
    click.echo(f"queue {safe(queue)} is {_with_article(kind)}, {count(moved, 'job')} moved.")


def _with_article(kind: str) -> str:
    return "a classic queue with priorities" if kind == PRIORITY else f"a {kind} queue"
