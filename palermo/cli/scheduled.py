"""`palermo scheduled`: jobs that are due later, seen and changed."""

import time
from typing import Any

import click

from palermo.cli.edge import FAILED, Run
from palermo.cli.lists import tell_rest
from palermo.cli.options import broker_options, json_option, parse_duration, parse_instant, yes_option
from palermo.cli.output import Column, ask_to_confirm, confirm, field, print_json, print_rows
from palermo.cli.text import count, safe
from palermo.rows import Row
from palermo.scheduled import DONE, GONE
from palermo.timetable import GIVE_UP, Chosen


@click.group()
def scheduled() -> None:
    """Look at jobs that are due later; cancel them, run them now, change their time."""


def name_options(command: Any) -> Any:
    """`--queue` and `--job`."""
    command = click.option("--job", metavar="NAME", help="Only this job; may hold * and ?.")(command)
    return click.option("--queue", metavar="QUEUE", help="Only for this queue; may hold * and ?.")(command)


def selection_options(command: Any) -> Any:
    """Which jobs: ids, or `--all` with filters; and how to ask and to answer."""
    command = click.option("--all", "every", is_flag=True, help="All of them, or all that the filters match.")(
        name_options(command)
    )
    return click.argument("ids", nargs=-1, metavar="[ID]...")(yes_option(broker_options(json_option(command))))


@scheduled.command("list")
@broker_options
@json_option
@name_options
@click.option("--page", type=click.IntRange(min=1), default=1, show_default=True, help="Which page.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="How many on a page.")
@click.pass_obj
def list_scheduled(run: Run, /, as_json: bool, queue: str | None, job: str | None, page: int, limit: int) -> None:
    """List the jobs that are due later, soonest first."""
    listing = run.inspector().scheduled(queue=queue, job=job, offset=(page - 1) * limit, limit=limit)
    columns: list[Column] = [
        field("Id"),
        ("Due", lambda row: row["run_at"]),
        field("Queue"),
        field("Job"),
        ("Arguments", lambda row: row["preview"]),
    ]
    print_rows(listing.rows, columns, as_json=as_json, none="no scheduled jobs.")
    if not as_json:
        tell_rest(len(listing), listing.total, page=page)


@scheduled.command("cancel")
@selection_options
@click.pass_obj
def cancel_scheduled(run: Run, /, yes: bool, as_json: bool, **selection: Any) -> None:
    """Have jobs that are due later not run at all."""
    which = chosen(run, "Cancel", yes=yes, **selection)
    tell(run.inspector().cancel_scheduled(which), as_json=as_json)


@scheduled.command("run")
@selection_options
@click.pass_obj
def run_now(run: Run, /, yes: bool, as_json: bool, **selection: Any) -> None:
    """Put jobs that are due later into their queues now."""
    which = chosen(run, "Run", yes=yes, **selection)
    tell(run.inspector().run_now(which), as_json=as_json)


@scheduled.command("move")
@selection_options
@click.option("--at", type=parse_instant, metavar="WHEN", help="The instant, such as 2026-12-01T09:00Z.")
@click.option("--in", "after", type=parse_duration, metavar="TIME", help="So long from now, such as 90s, 5m or 2d.")
@click.pass_obj
def move(run: Run, /, yes: bool, as_json: bool, at: float | None, after: float | None, **selection: Any) -> None:
    """Have jobs that are due later run at another instant."""
    instant = instant_of(at, after)
    if instant is None:
        raise click.UsageError("say when: --at 2026-12-01T09:00Z or --in 5m", click.get_current_context())
    which = chosen(run, "Move", yes=yes, **selection)
    tell(run.inspector().reschedule(which, instant), as_json=as_json)


def instant_of(at: float | None, after: float | None) -> float | None:
    """What `--at` or `--in` says, in Unix seconds; None without either. Raises UsageError for both."""
    if at is not None and after is not None:
        raise click.UsageError("give --at or --in, not both", click.get_current_context())
    return time.time() + after if after is not None else at


def chosen(
    run: Run,
    verb: str,
    *,
    yes: bool,
    ids: tuple[str, ...],
    every: bool,
    queue: str | None,
    job: str | None,
    retries: bool | None = None,
) -> tuple[str, ...] | Chosen:
    """Which jobs are meant, once that was confirmed where many are. `retries` is as in Chosen.

    Raises UsageError, Abort.
    """
    context = click.get_current_context()
    if ids:
        if every or queue or job:
            raise click.UsageError("name ids, or say --all with filters, not both", context)
        return ids
    if not every:
        raise click.UsageError("name ids, or say --all, with --queue or --job for some", context)
    if not yes:
        ask_to_confirm(yes=yes)
        total = run.inspector().scheduled(queue=queue, job=job, retries=retries, limit=1).total or 0
        confirm(f"{verb} {count(total, 'retrying job' if retries else 'scheduled job')}?", yes=yes)
    return Chosen(queue=queue, job=job, retries=retries)


def tell(rows: list[Row], *, as_json: bool) -> None:
    """Say what was done with each; ends with a code if there was one that was not there any more."""
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            when = f", due {row['run_at']}" if row["run_at"] and row["state"] != DONE[GIVE_UP] else ""
            click.echo(f"{safe(row['id'])}: {row['state']}{when}.")
    if any(row["state"] == GONE for row in rows):
        raise click.exceptions.Exit(FAILED)
