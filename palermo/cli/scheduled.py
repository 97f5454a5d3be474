"""`palermo scheduled` and `retries`: list and change scheduled jobs and jobs waiting for a retry."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import click
from msgspec.structs import replace

from palermo.cli.command_group import NOT_FOUND, Context, misuse, note
from palermo.cli.job_ids import SCHEDULED_JOBS, chosen_jobs
from palermo.cli.listings import print_page
from palermo.cli.options import (
    arguments_options,
    filter_options,
    limit_option,
    page_option,
    parse_duration,
    parse_instant,
    query_options,
    selection_options,
    wanted_jobs,
)
from palermo.cli.output import Column, confirm, field, printed_json, progress
from palermo.contract import clock
from palermo.contract.rows import Row
from palermo.contract.scheduled import GIVE_UP, MOVE
from palermo.contract.sweep import SweepProgress
from palermo.core.text import count, safe
from palermo.errors import PalermoError
from palermo.inspector.scheduled import ALL, DONE, GONE, ScheduledJobs, Which, counted
from palermo.views.filter import JobFilter

#: Seconds between two requests for the progress of a listing.
_ASK_EVERY = 1.0


@click.group()
def scheduled() -> None:
    """List, cancel, run or reschedule scheduled jobs."""


_filters = filter_options("queue", "job", "error", "tenant", "due_from", "due_until", "since", "until")


@scheduled.command("list")
@query_options
@_filters
@page_option
@limit_option
@click.pass_obj
def list_scheduled(context: Context, /, page: int, limit: int, **filters: Any) -> None:
    """List scheduled jobs, soonest first."""
    jobs, wanted = context.inspector().scheduled, wanted_jobs(**filters)
    with _reading(jobs):
        listing = jobs.list(wanted, offset=(page - 1) * limit, limit=limit)
    columns: list[Column] = [
        field("Id"),
        field("State"),
        ("Due", lambda row: row["run_at"]),
        field("Queue"),
        field("Job"),
        ("Arguments", lambda row: row["preview"]),
    ]
    print_page(listing, columns, "scheduled jobs", page=page, limit=limit, filter=wanted)


@contextmanager
def _reading(jobs: ScheduledJobs) -> Iterator[None]:
    """Show the number of jobs read so far, while the leader prepares a listing."""
    ended = threading.Event()
    with progress("still reading", of="scheduled jobs") as show:

        def watch() -> None:
            # The listing itself reports such an error.
            with suppress(PalermoError):
                while not ended.wait(_ASK_EVERY):
                    if (found := jobs.progress()) is not None:
                        show(SweepProgress(seen=found[0], total=found[1]))

        threading.Thread(target=watch, name="palermo-progress", daemon=True).start()
        try:
            yield
        finally:
            ended.set()


@scheduled.command("cancel")
@selection_options(_filters)
@arguments_options("Only with these")
@click.pass_obj
def cancel_scheduled(context: Context, /, **selection: Any) -> None:
    """Cancel scheduled jobs."""
    _alter(context, "Cancel", ScheduledJobs.cancel, **selection)


@scheduled.command("run")
@selection_options(_filters)
@click.pass_obj
def run_now(context: Context, /, **selection: Any) -> None:
    """Enqueue scheduled jobs now."""
    _alter(context, "Run", ScheduledJobs.run_now, **selection)


@scheduled.command("move")
@selection_options(_filters)
@click.option("--at", type=parse_instant, metavar="WHEN", help="New time, such as 2026-12-01T09:00Z.")
@click.option("--in", "after", type=parse_duration, metavar="TIME", help="New delay from now, such as 90s or 2d.")
@click.option("--later", type=parse_duration, metavar="TIME", help="Move each job by this time, such as 1h.")
@click.pass_obj
def move(context: Context, /, at: float | None, after: float | None, later: float | None, **selection: Any) -> None:
    """Reschedule jobs to another time."""
    if sum(value is not None for value in (at, after, later)) != 1:
        raise misuse("exactly one time is needed: --at 2026-12-01T09:00Z, --in 5m or --later 1h")
    instant = at if after is None else clock.now() + after
    _alter(context, "Move", lambda jobs, which: jobs.reschedule(which, instant, later=later), **selection)


#: Changes the chosen jobs and returns their rows.
Alter = Callable[[ScheduledJobs, Which], Sequence[Row]]


def _alter(context: Context, verb: str, alter: Alter, **selection: Any) -> None:
    """Change the chosen jobs, and print their new states."""
    jobs = context.inspector().scheduled
    print_altered(alter(jobs, _chosen(context, jobs, verb, **selection)))


def _chosen(
    context: Context,
    jobs: ScheduledJobs,
    verb: str,
    *,
    yes: bool,
    ids: tuple[str, ...],
    every: bool,
    args: list[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    retries: bool = False,
    **filters: Any,
) -> Which:
    """Return the chosen jobs, or only the retries among them, once the user has confirmed `--all`.

    Raises click.UsageError, and Abort if the user declines.
    """
    by_arguments = args is not None or kwargs is not None
    if by_arguments and (ids or not every or not filters["job"]):
        raise misuse("--args and --kwargs can only be used with --all and --job NAME")
    chosen = chosen_jobs(context, SCHEDULED_JOBS, filters, ids=ids, every=every)
    if not isinstance(chosen, JobFilter):
        return chosen
    if retries:
        chosen = replace(chosen, state="retrying")
    same = jobs.ids_with(chosen, args, kwargs) if by_arguments else None
    confirm(lambda: f"{verb} {_counted(jobs, chosen, same)}?", yes=yes)
    return chosen if same is None else same


def _counted(jobs: ScheduledJobs, chosen: JobFilter, ids: list[str] | None) -> str:
    number = jobs.list(chosen, ids=ids, limit=1, depth=ALL).total or 0
    if chosen.state == "retrying":
        return count(number, "retrying job")
    retries = None if chosen.state else jobs.list(replace(chosen, state="retrying"), ids=ids, limit=1, depth=ALL).total
    return counted(number, retries or 0)


def print_altered(rows: Sequence[Row]) -> None:
    """Print the new state of each job. Exits with NOT_FOUND if no job was chosen, or one wasn't found."""
    if not printed_json(rows):
        for row in rows:
            due = "due" if row["state"] == DONE[MOVE] else "was due"
            when = f", {due} {row['run_at']}" if row["run_at"] and row["state"] != DONE[GIVE_UP] else ""
            state = "not found; it may have become due" if row["state"] == GONE else row["state"]
            click.echo(f"{safe(row['id'])}: {state}{when}.")
        if not rows:
            note("no job matches. Nothing was changed.")
    if not rows or any(row["state"] == GONE for row in rows):
        raise click.exceptions.Exit(NOT_FOUND)


# -- retries


@click.group()
def retries() -> None:
    """List jobs waiting for a retry, retry them now, or give up on them."""


@retries.command("list")
@query_options
@_filters
@page_option
@limit_option
@click.pass_obj
def list_retries(context: Context, /, page: int, limit: int, **filters: Any) -> None:
    """List jobs waiting for a retry and their last errors, soonest first."""
    wanted = wanted_jobs(**filters, state="retrying")
    listing = context.inspector().scheduled.list(wanted, offset=(page - 1) * limit, limit=limit)
    columns: list[Column] = [
        field("Id"),
        ("Due", lambda row: row["run_at"]),
        field("Queue"),
        field("Job"),
        ("Attempt", lambda row: (row["retries"] or 0) + 1),
        ("Error", lambda row: f"{row['error']['class']}: {row['error']['message']}"),
    ]
    print_page(listing, columns, "jobs wait for a retry", page=page, limit=limit, filter=replace(wanted, state=None))


@retries.command("run")
@selection_options(_filters)
@click.pass_obj
def retry_now(context: Context, /, **selection: Any) -> None:
    """Retry jobs now instead of waiting."""
    _alter(context, "Run", ScheduledJobs.retry_now, retries=True, **selection)


@retries.command("give-up")
@selection_options(_filters)
@click.pass_obj
def give_up(context: Context, /, **selection: Any) -> None:
    """Move jobs waiting for a retry to the failed queue, as if they had no retries left."""
    _alter(context, "Give up", ScheduledJobs.give_up, retries=True, **selection)
