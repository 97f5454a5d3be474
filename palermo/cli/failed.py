"""`palermo failed`: list failed jobs, requeue them, discard them."""

from typing import Any

import click

from palermo.cli.bulk import run_on_jobs
from palermo.cli.command_group import Context
from palermo.cli.completion import complete_queue
from palermo.cli.job_ids import FAILED_JOBS, chosen_jobs, whole_ids
from palermo.cli.listings import print_page, unread
from palermo.cli.options import (
    arguments_options,
    filter_options,
    paging_options,
    query_options,
    selection_options,
    wanted_jobs,
)
from palermo.cli.output import Column, confirm, field, print_facts, print_rows, printed_json, progress
from palermo.core.text import count, one_line, safe
from palermo.core.topology import check_new_queue
from palermo.inspector.inspector import Inspector
from palermo.views.filter import JobFilter

_filters = filter_options("since", "until", "queue", "job", "error", "worker", "tenant", "group", "requeued")


@click.group()
def failed() -> None:
    """List, requeue or discard failed jobs."""


@failed.command("list")
@query_options
@paging_options
@_filters
@click.pass_obj
def list_failed(context: Context, /, limit: int, page: int, newest: bool, **filters: Any) -> None:
    """List failed jobs, oldest failure first."""
    offset = (page - 1) * limit
    wanted = wanted_jobs(**filters)
    listing = context.inspector().failed.list(offset=offset, limit=limit, newest=newest, filter=wanted, count=False)
    columns: list[Column] = [
        field("Id"),
        field("Queue"),
        field("Job"),
        ("Failed", lambda row: row["failed_at"]),
        field("Retries"),
        ("Error", lambda row: f"{row['error']['class']}: {row['error']['message']}" if row["error"] else ""),
    ]
    print_page(listing, columns, "failed jobs", page=page, limit=limit, filter=wanted, unseen=unread)


@failed.command("groups")
@query_options
@_filters
@click.pass_obj
def list_groups(context: Context, /, **filters: Any) -> None:
    """Group failed jobs by job, exception and place in the code.

    `palermo failed list --group GROUP` lists the jobs of one group. To act on all of them, use `palermo failed requeue
    --all --group GROUP` or `palermo failed discard --all --group GROUP`.
    """
    columns: list[Column] = [
        field("Count"),
        field("Group", "fingerprint"),
        field("Job"),
        field("Last", "last_seen"),
        field("Newest id", "id"),
        ("Error", lambda row: f"{row['error']}: {row['message']}"),
    ]
    with progress("group", of="failed jobs") as show:
        rows = context.inspector().failed.groups(wanted_jobs(**filters), progress=show)
    print_rows(rows, columns, none="no failed jobs.")


@failed.command("show")
@click.argument("id")
@query_options
@click.pass_obj
def show(context: Context, /, id: str) -> None:
    """Show the failed job ID, with its arguments and errors."""
    (whole,) = whole_ids(context, [id], FAILED_JOBS)
    row = context.inspector().failed.show(whole)
    if printed_json(row):
        return
    error = row["error"] or {"class": None, "message": None, "traceback": ""}
    arguments = None if row["args"] is None else [*map(repr, row["args"])]
    arguments = arguments and [*arguments, *(f"{name}={value!r}" for name, value in (row["kwargs"] or {}).items())]
    print_facts(
        (
            ("id", row["id"]),
            ("job", row["job"]),
            ("queue", row["queue"]),
            ("topic", row["topic"]),
            ("parent", row["parent"]),
            ("headers", [f"{name}={value!r}" for name, value in row["headers"].items()] or None),
            ("arguments", arguments or row["preview"]),
            ("content type", row["content_type"]),
            ("created", row["created_at"]),
            ("failed", row["failed_at"]),
            ("retries", row["retries"]),
            ("worker", row["worker"]),
            ("error", error["class"]),
            ("message", error["message"]),
        )
    )
    if len(row["attempts"]) > 1:
        click.echo("\nattempts")
        for each in row["attempts"]:
            text = f"{each['class']}: {each['message']}"
            click.echo(f"  {each['attempt']}  {each['failed_at'] or '?'}  {one_line(text)}")
    if error["traceback"]:
        click.echo("\n" + safe(error["traceback"].rstrip(), lines=True))


@failed.command("requeue")
@selection_options(_filters)
@arguments_options("New")
@click.option(
    "--to-queue",
    metavar="QUEUE",
    shell_complete=complete_queue,
    help="Requeue to this queue instead of the job's own.",
)
@click.pass_obj
def requeue(
    context: Context,
    /,
    ids: tuple[str, ...],
    every: bool,
    args: list[Any] | None,
    kwargs: dict[str, Any] | None,
    to_queue: str | None,
    yes: bool,
    **filters: Any,
) -> None:
    """Requeue the failed jobs with these ids; with --all, requeue all that match the filters.

    If this command is killed, no job is lost. Run it again to requeue the remaining jobs. Up to 100 jobs may then run
    twice, or more if RabbitMQ was killed.
    """
    which = chosen_jobs(context, FAILED_JOBS, filters, ids=ids, every=every)
    if to_queue is not None:
        check_new_queue(to_queue)
    inspector = context.inspector()
    unserved = "" if yes or to_queue is None else inspector.queues.unserved(to_queue)
    if every or unserved:
        destination = f" to queue {to_queue!r}" if to_queue is not None else ""
        confirm(lambda: _question("Requeue", inspector, which, destination), yes=yes, warning=unserved)
    run_on_jobs("requeue", "requeued", inspector.failed.requeue, which, args=args, kwargs=kwargs, queue=to_queue)


@failed.command("discard")
@selection_options(_filters)
@click.pass_obj
def discard(context: Context, /, ids: tuple[str, ...], every: bool, yes: bool, **filters: Any) -> None:
    """Permanently discard the failed jobs with these ids; with --all, discard all that match the filters."""
    which = chosen_jobs(context, FAILED_JOBS, filters, ids=ids, every=every)
    inspector = context.inspector()
    confirm(lambda: _question("Discard", inspector, which, " for good"), yes=yes)
    run_on_jobs("discard", "discarded", inspector.failed.discard, which)


def _question(verb: str, inspector: Inspector, which: tuple[str, ...] | JobFilter, end: str) -> str:
    """Return the question before a command on failed jobs; "" if there are none."""
    number = inspector.failed.count(which)
    filtered = f" with {which}" if isinstance(which, JobFilter) and not which.everything else ""
    return f"{verb} {count(number, 'failed job')}{filtered}{end}?" if number else ""
