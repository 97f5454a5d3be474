"""`palermo scheduled` and `retries`: look at jobs that are due later, or wait to be tried again, and change them."""

from typing import Any

import click

from palermo.cli.command_group import NOT_FOUND, Context
from palermo.cli.completion import complete_job, complete_queue
from palermo.cli.enqueue import parse_args, parse_kwargs
from palermo.cli.job_ids import SCHEDULED_JOBS, whole_ids
from palermo.cli.listings import print_page
from palermo.cli.options import (
    limit_option,
    page_option,
    parse_due,
    parse_duration,
    parse_instant,
    query_options,
    yes_option,
)
from palermo.cli.output import Column, ask_to_confirm, confirm, field, misuse, note, print_json
from palermo.contract import clock
from palermo.contract.rows import Row
from palermo.contract.scheduled import GIVE_UP, MOVE, ScheduledFilter, due_between
from palermo.core.text import count, safe
from palermo.inspector.scheduled import DONE, GONE, counted


@click.group()
def scheduled() -> None:
    """Look at jobs that are due later; cancel them, run them now, change their time."""


def filter_options(command: Any) -> Any:
    """Add `--queue`, `--job`, `--due-from` and `--due-until`."""
    for name, text in (("--due-until", "before"), ("--due-from", "after")):
        told = f"Only what is due then or {text}: 2h (from now) or 2026-12-01T09:00Z."
        command = click.option(name, type=parse_due, metavar="WHEN", help=told)(command)
    command = click.option(
        "--job", metavar="NAME", shell_complete=complete_job, help="Only this job; may hold * and ?."
    )(command)
    return click.option(
        "--queue", metavar="QUEUE", shell_complete=complete_queue, help="Only for this queue; may hold * and ?."
    )(command)


def selection_options(command: Any) -> Any:
    """Add the options that choose jobs (ids, or `--all` with filters), `--yes`, `--json` and those of the broker."""
    command = click.option("--all", "every", is_flag=True, help="All of them, or all that the filters match.")(
        filter_options(command)
    )
    return click.argument("ids", nargs=-1, metavar="[ID]...")(yes_option(query_options(command)))


@scheduled.command("list")
@query_options
@filter_options
@page_option
@limit_option
@click.pass_obj
def list_scheduled(context: Context, /, as_json: bool, page: int, limit: int, **filters: Any) -> None:
    """List the jobs that are due later, soonest first."""
    listing = context.inspector().scheduled.list(
        ScheduledFilter(**_names_and_due(**filters)), offset=(page - 1) * limit, limit=limit
    )
    columns: list[Column] = [
        field("Id"),
        field("State"),
        ("Due", lambda row: row["run_at"]),
        field("Queue"),
        field("Job"),
        ("Arguments", lambda row: row["preview"]),
    ]
    print_page(listing, columns, "scheduled jobs", page=page, limit=limit, as_json=as_json)


@scheduled.command("cancel")
@selection_options
@click.option("--args", "args_text", metavar="JSON", help="Only with these positional arguments, a JSON array.")
@click.option("--kwargs", "kwargs_text", metavar="JSON", help="Only with these named arguments, a JSON object.")
@click.pass_obj
def cancel_scheduled(
    context: Context,
    /,
    yes: bool,
    as_json: bool,
    args_text: str | None,
    kwargs_text: str | None,
    **selection: Any,
) -> None:
    """Have jobs that are due later not run at all."""
    if args_text is None and kwargs_text is None:
        which = chosen(context, "Cancel", yes=yes, **selection)
    else:
        which = _chosen_by_arguments(context, args_text, kwargs_text, yes=yes, **selection)
    print_altered(context.inspector().scheduled.cancel(which), as_json=as_json)


@scheduled.command("run")
@selection_options
@click.pass_obj
def run_now(context: Context, /, yes: bool, as_json: bool, **selection: Any) -> None:
    """Put jobs that are due later into their queues now."""
    which = chosen(context, "Run", yes=yes, **selection)
    print_altered(context.inspector().scheduled.run_now(which), as_json=as_json)


@scheduled.command("move")
@selection_options
@click.option("--at", type=parse_instant, metavar="WHEN", help="The instant, such as 2026-12-01T09:00Z.")
@click.option("--in", "after", type=parse_duration, metavar="TIME", help="So long from now, such as 90s, 5m or 2d.")
@click.option("--later", type=parse_duration, metavar="TIME", help="Each so much later than it is due, such as 1h.")
@click.pass_obj
def move(
    context: Context,
    /,
    yes: bool,
    as_json: bool,
    at: float | None,
    after: float | None,
    later: float | None,
    **selection: Any,
) -> None:
    """Have jobs that are due later run at another instant."""
    instant = instant_of(at, after)
    if (instant is None) == (later is None):
        raise misuse("say when: --at 2026-12-01T09:00Z, --in 5m or --later 1h, and only one")
    which = chosen(context, "Move", yes=yes, **selection)
    print_altered(context.inspector().scheduled.reschedule(which, instant, later=later), as_json=as_json)


def _names_and_due(*, due_from: float | None, due_until: float | None, **names: str | None) -> dict[str, Any]:
    """The filters as the inspector takes them."""
    return {**names, "due": due_between(due_from, due_until)}


def _chosen_by_arguments(
    context: Context,
    args_text: str | None,
    kwargs_text: str | None,
    *,
    yes: bool,
    ids: tuple[str, ...],
    every: bool,
    **filters: Any,
) -> tuple[str, ...]:
    """The ids of the jobs with these arguments; the user has confirmed to cancel them. Raises UsageError, Abort."""
    if ids or not every or not filters["job"]:
        raise misuse("--args and --kwargs choose among the jobs of one name: add --all and --job NAME")
    args, kwargs = parse_args(args_text), parse_kwargs(kwargs_text)
    ask_to_confirm(yes=yes)
    found = context.inspector().scheduled.ids_with(ScheduledFilter(**_names_and_due(**filters)), args, kwargs)
    if found and not yes:
        again = (
            context.inspector().scheduled.list(ScheduledFilter(ids=frozenset(found), retries=True), limit=1).total or 0
        )
        confirm(f"Cancel {counted(len(found), again)}?", yes=yes)
    return tuple(found)


def instant_of(at: float | None, after: float | None) -> float | None:
    """The instant that `--at` or `--in` gives, in Unix seconds; None without either. Raises UsageError for both."""
    if at is not None and after is not None:
        raise misuse("give --at or --in, not both")
    return clock.now() + after if after is not None else at


def chosen(
    context: Context,
    verb: str,
    *,
    yes: bool,
    ids: tuple[str, ...],
    every: bool,
    retries: bool | None = None,
    **filters: Any,
) -> tuple[str, ...] | ScheduledFilter:
    """The jobs that the options choose; the user has confirmed `--all`. `retries` is as in ScheduledFilter.

    Raises UsageError, Abort.
    """
    if ids:
        if every or any(each is not None for each in filters.values()):
            raise misuse("name ids, or say --all with filters, not both")
        return whole_ids(context, ids, SCHEDULED_JOBS)
    if not every:
        raise misuse("name ids, or say --all, with --queue, --job or --due-until for some")
    asked = _names_and_due(**filters)
    if not yes:
        ask_to_confirm(yes=yes)
        inspector = context.inspector()
        total, again = (
            inspector.scheduled.list(ScheduledFilter(**asked, retries=kind), limit=1).total or 0
            for kind in (retries, True)
        )
        confirm(f"{verb} {count(total, 'retrying job') if retries else counted(total, again)}?", yes=yes)
    return ScheduledFilter(**asked, retries=retries)


def print_altered(rows: list[Row], *, as_json: bool) -> None:
    """Print what was done with each job.

    Exit with NOT_FOUND if none was chosen, or one of them is not there.
    """
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            due = "due" if row["state"] == DONE[MOVE] else "was due"
            when = f", {due} {row['run_at']}" if row["run_at"] and row["state"] != DONE[GIVE_UP] else ""
            click.echo(f"{safe(row['id'])}: {row['state']}{when}.")
        if not rows:
            note("no job was chosen: none matches. Nothing was changed.")
    if not rows or any(row["state"] == GONE for row in rows):
        raise click.exceptions.Exit(NOT_FOUND)


# -- retries


@click.group()
def retries() -> None:
    """Look at jobs that have failed and wait to be tried again; run them now, or give them up."""


@retries.command("list")
@query_options
@filter_options
@page_option
@limit_option
@click.pass_obj
def list_retries(context: Context, /, as_json: bool, page: int, limit: int, **filters: Any) -> None:
    """List the jobs that wait to be tried again, the next one on top, each with its last error."""
    filter = ScheduledFilter(**_names_and_due(**filters), retries=True)
    listing = context.inspector().scheduled.list(filter, offset=(page - 1) * limit, limit=limit)
    columns: list[Column] = [
        field("Id"),
        ("Due", lambda row: row["run_at"]),
        field("Queue"),
        field("Job"),
        ("Attempt", lambda row: (row["retries"] or 0) + 1),
        ("Error", lambda row: f"{row['error']['class']}: {row['error']['message']}"),
    ]
    print_page(listing, columns, "jobs wait to be tried again", page=page, limit=limit, as_json=as_json)


@retries.command("run")
@selection_options
@click.pass_obj
def retry_now(context: Context, /, yes: bool, as_json: bool, **selection: Any) -> None:
    """Put jobs that wait to be tried again into their queues now."""
    which = chosen(context, "Run", yes=yes, retries=True, **selection)
    print_altered(context.inspector().scheduled.retry_now(which), as_json=as_json)


@retries.command("give-up")
@selection_options
@click.pass_obj
def give_up(context: Context, /, yes: bool, as_json: bool, **selection: Any) -> None:
    """Put jobs that wait to be tried again among the failed jobs, with all their attempts, as if no retry were left."""
    which = chosen(context, "Give up", yes=yes, retries=True, **selection)
    print_altered(context.inspector().scheduled.give_up(which), as_json=as_json)
