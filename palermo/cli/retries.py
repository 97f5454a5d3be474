"""`palermo retries`: jobs that have failed and wait to be tried again."""

from typing import Any

import click

from palermo.cli.command_group import Context
from palermo.cli.listings import note_rest
from palermo.cli.options import broker_options, json_option
from palermo.cli.output import Column, field, print_rows
from palermo.cli.scheduled import chosen, name_options, print_altered, selection_options


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
def list_retries(context: Context, /, as_json: bool, queue: str | None, job: str | None, page: int, limit: int) -> None:
    """List the jobs that wait to be tried again, the next one on top, each with its last error."""
    listing = context.inspector().retries(queue=queue, job=job, offset=(page - 1) * limit, limit=limit)
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
        note_rest(len(listing), listing.total, page=page)


@retries.command("run")
@selection_options
@click.pass_obj
def retry_now(context: Context, /, yes: bool, as_json: bool, **selection: Any) -> None:
    """Put jobs that wait to be tried again into their queues now."""
    which = chosen(context, "Run", yes=yes, retries=True, **selection)
    print_altered(context.inspector().retry_now(which), as_json=as_json)


@retries.command("give-up")
@selection_options
@click.pass_obj
def give_up(context: Context, /, yes: bool, as_json: bool, **selection: Any) -> None:
    """Put jobs that wait to be tried again among the failed jobs, with all their attempts, as if no retry were left."""
    which = chosen(context, "Give up", yes=yes, retries=True, **selection)
    print_altered(context.inspector().give_up(which), as_json=as_json)
