"""`palermo recurring`: lists and changes recurring jobs."""

from typing import Any

import click

from palermo.cli.command_group import Context, note
from palermo.cli.completion import complete_job, complete_queue, complete_recurring
from palermo.cli.options import arguments_options, broker_options, parse_duration, query_options, yes_option
from palermo.cli.output import Column, confirm, field, print_rows, printed_json
from palermo.contract.recurring import MISSED
from palermo.core.text import count, safe
from palermo.errors import NotFound
from palermo.jobs import registry
from palermo.jobs.modules import import_modules


@click.group()
def recurring() -> None:
    """List, add, remove, enable, disable or run recurring jobs."""


@recurring.command("list")
@query_options
@click.pass_obj
def list_recurring(context: Context, /) -> None:
    """List recurring jobs by name."""
    columns: list[Column] = [
        field("Name"),
        field("Job"),
        ("When", lambda row: row["words"] if row["enabled"] else f"{row['words']}, disabled"),
        ("Last run", lambda row: row["last_run"]),
        ("Next run", lambda row: row["next_run"]),
    ]
    print_rows(context.inspector().recurring.list(), columns, none="no recurring jobs.")


@recurring.command("show")
@click.argument("name", shell_complete=complete_recurring)
@query_options
@click.pass_obj
def show(context: Context, /, name: str) -> None:
    """Show one recurring job."""
    found = next((row for row in context.inspector().recurring.list() if row["name"] == name), None)
    if found is None:
        raise NotFound(f"no recurring job {name!r}; `palermo recurring list` lists the recurring jobs.")
    if printed_json(found):
        return
    for key, value in found.items():
        if value is not None:
            click.echo(f"{key}: {safe(str(value))}")


@recurring.command("add")
@click.argument("name")
@click.argument("job", shell_complete=complete_job)
@click.option(
    "--cron",
    metavar="EXPRESSION",
    help='Five fields as in crontab, such as "*/5 * * * *", or six, the first for seconds.',
)
@click.option("--every", type=parse_duration, metavar="TIME", help="Time between two runs: 30, 5m, 1h30m.")
@click.option(
    "--tz", default="UTC", show_default=True, metavar="ZONE", help="Time zone of --cron, such as Europe/Rome."
)
@arguments_options()
@click.option(
    "-q",
    "--queue",
    metavar="QUEUE",
    shell_complete=complete_queue,
    help="Queue to enqueue to; by default the job's own, if PALERMO_IMPORTS includes its module.",
)
@click.option(
    "--missed",
    type=click.Choice(MISSED),
    default="once",
    show_default=True,
    help="What to do about runs missed while no worker was running.",
)
@broker_options
@click.pass_obj
def add(
    context: Context,
    /,
    name: str,
    job: str,
    args: list[Any] | None,
    kwargs: dict[str, Any] | None,
    queue: str | None,
    **times: Any,
) -> None:
    """Add the recurring job NAME, which runs JOB, such as shop.tasks.sweep. If NAME exists, it is replaced."""
    inspector = context.inspector(creates=True)
    import_modules(context.client().settings.imports)
    inspector.recurring.put(name, job, args=args or (), kwargs=kwargs, queue=queue, **times)
    _print_done("added", name)
    if queue is None and registry.find(job) is None:
        note(f"no -q, and the code of {job} is not imported here: it goes to queue {inspector.jobs.queue_of(job)!r}.")


@recurring.command("remove")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_recurring)
@yes_option
@broker_options
@click.pass_obj
def remove(context: Context, /, names: tuple[str, ...], yes: bool) -> None:
    """Remove recurring jobs. A job that is declared in code is added again when a worker starts; disable it instead."""
    confirm(lambda: f"Remove {count(len(names), 'recurring job')} ({', '.join(names)}) for good?", yes=yes)
    for name in names:
        context.inspector().recurring.remove(name)
        _print_done("removed", name)


@recurring.command("enable")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_recurring)
@broker_options
@click.pass_obj
def enable(context: Context, /, names: tuple[str, ...]) -> None:
    """Enable recurring jobs."""
    _switch(context, names, on=True)


@recurring.command("disable")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_recurring)
@broker_options
@click.pass_obj
def disable(context: Context, /, names: tuple[str, ...]) -> None:
    """Disable recurring jobs, even across restarts, until you enable them again."""
    _switch(context, names, on=False)


def _switch(context: Context, names: tuple[str, ...], *, on: bool) -> None:
    for name in names:
        context.inspector().recurring.switch(name, on=on)
        _print_done("enabled" if on else "disabled", name)


@recurring.command("run")
@click.argument("name", shell_complete=complete_recurring)
@broker_options
@click.pass_obj
def run_now(context: Context, /, name: str) -> None:
    """Enqueue a recurring job now, even if it is disabled, and print the job's id. Its schedule does not change."""
    click.echo(context.inspector().recurring.run(name))


def _print_done(done: str, name: str) -> None:
    click.echo(f"{done} recurring job {safe(name)}.")
