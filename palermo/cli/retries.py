"""`palermo retries`: jobs that have failed and wait to be tried again."""

from typing import Any

import click

from palermo.cli.edge import Run
from palermo.cli.lists import tell_rest
from palermo.cli.options import broker_options, json_option
from palermo.cli.output import Column, field, print_rows
from palermo.cli.scheduled import chosen, name_options, selection_options, tell


@click.group()
def retries() -> None:
    """Look at jobs that have failed and wait to be tried again; run them now, or give them up."""


@retries.command("list")
@broker_options
@json_option
@name_options
@click.option("--page", type=click.IntRange(min=1), default=1, show_default=True, help="Which page.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="How many on a page.")
@click.pass_obj
def list_retries(run: Run, /, as_json: bool, queue: str | None, job: str | None, page: int, limit: int) -> None:
    """List them, the one that is tried next on top, each with its last error."""
    listing = run.inspector().retries(queue=queue, job=job, offset=(page - 1) * limit, limit=limit)
    columns: list[Column] = [
        field("Id"),
        ("Due", lambda row: row["run_at"]),
        field("Queue"),
        field("Job"),
        ("Attempt", lambda row: (row["retries"] or 0) + 1),
        ("Error", lambda row: f"{row['error']['class']}: {row['error']['message']}"),
    ]
    print_rows(listing.rows, columns, as_json=as_json, none="no job waits to be tried again.")
    if not as_json:
        tell_rest(len(listing), listing.total, page=page)


@retries.command("run")
@selection_options
@click.pass_obj
def retry_now(run: Run, /, yes: bool, as_json: bool, **selection: Any) -> None:
    """Put them into their queues now."""
    which = chosen(run, "Run", yes=yes, retries=True, **selection)
    tell(run.inspector().retry_now(which), as_json=as_json)


@retries.command("give-up")
@selection_options
@click.pass_obj
def give_up(run: Run, /, yes: bool, as_json: bool, **selection: Any) -> None:
    """Put them among the failed jobs, with all their attempts, as if no retry had been left."""
    which = chosen(run, "Give up", yes=yes, retries=True, **selection)
    tell(run.inspector().give_up(which), as_json=as_json)
