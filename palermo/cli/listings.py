"""`palermo queues`, `jobs`, `workers`, `limits` and `tenants`: read-only listings."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from palermo.cli.command_group import Context, note
from palermo.cli.completion import complete_queue
from palermo.cli.options import filter_options, paging_options, query_options, wanted_jobs
from palermo.cli.output import Column, field, print_rows, wants_json
from palermo.contract.rows import Listing, Row, silent_text
from palermo.core.text import count
from palermo.core.topology import is_failed
from palermo.errors import UsageError
from palermo.views.filter import EVERYTHING, AuditFilter, JobFilter


@click.command()
@query_options
@click.pass_obj
def queues(context: Context, /) -> None:
    """List the queues with their waiting and running jobs and their workers."""
    columns: list[Column] = [
        field("Queue", "name"),
        field("Pending"),
        field("In progress", "in_progress"),
        field("Workers"),
        ("Paused", lambda row: "paused" if row["paused"] else ""),
    ]
    inspector = context.inspector()
    rows = inspector.queues.list()
    print_rows(rows, columns, none="no queues.")
    # A worker that doesn't answer doesn't count as serving a queue.
    unserved = any(not row["workers"] and not is_failed(row["name"]) for row in rows)
    if unserved and not wants_json() and (silent := silent_text(inspector.workers.list())):
        note(f"{silent}. Only answering workers are counted; `palermo doctor` shows what to do.")


@click.command()
@click.argument("queue", shell_complete=complete_queue)
@query_options
@paging_options
@filter_options()
@click.pass_obj
def jobs(context: Context, /, queue: str, limit: int, page: int, newest: bool, **filters: Any) -> None:
    """List the waiting jobs of QUEUE, oldest first. Jobs in the state cancelled will not run.

    --filter searches the first 10,000 jobs of the queue, or the last 10,000 with --newest.
    """
    wanted = wanted_jobs(**filters)
    jobs = context.inspector().jobs
    listing = jobs.list(queue, offset=(page - 1) * limit, limit=limit, newest=newest, filter=wanted)
    columns: list[Column] = [
        field("Id"),
        field("Job"),
        field("State"),
        ("Created", lambda row: row["created_at"]),
        field("Retries"),
        ("Arguments", lambda row: row["preview"]),
    ]
    unseen = unread if is_failed(queue) and wanted.everything else unsearched
    print_page(listing, columns, f"jobs wait in queue {queue!r}", page=page, limit=limit, filter=wanted, unseen=unseen)


@click.command()
@query_options
@click.pass_obj
def workers(context: Context, /) -> None:
    """List the live workers with their running jobs."""
    columns: list[Column] = [
        field("Worker", "id"),
        field("State"),
        field("Queues"),
        *((name.capitalize(), _known(name)) for name in ("slots", "processed", "failed")),
        ("Leads in", lambda row: ", ".join(row["duties"] or ())),
        ("Started", lambda row: row["started_at"]),
        ("Running", _running),
    ]
    rows = context.inspector().workers.list()
    print_rows(rows, columns, none="no workers.")
    if not wants_json() and (silent := silent_text(rows)):
        note(f"{silent}. Its row shows the last known values; `palermo doctor` shows what to do.")


@click.command()
@query_options
@click.pass_obj
def limits(context: Context, /) -> None:
    """List the limits and rates by key, with their running and waiting jobs."""
    columns: list[Column] = [
        field("Key"),
        ("Limit", lambda row: row["limit"]),
        ("Rate", lambda row: row["rate"]),
        field("Running"),
        field("Waiting"),
    ]
    print_rows(context.inspector().keys.limits(), columns, none="no limited job is running or waiting.")


@click.command()
@click.argument("queue", shell_complete=complete_queue)
@query_options
@paging_options
@click.option("--tenant", metavar="NAME", help="Only this tenant.")
@click.pass_obj
def tenants(context: Context, /, queue: str, tenant: str | None, limit: int, page: int, newest: bool) -> None:
    """List the tenants with waiting jobs in QUEUE, largest first."""
    if newest:
        raise UsageError("tenants are not ordered by time. Leave out --newest.")
    listing = context.inspector().tenants.list(queue, tenant, offset=(page - 1) * limit, limit=limit)
    columns: list[Column] = [field("Tenant"), field("Pending"), field("Share")]
    waiting = f"jobs waiting in queue {queue!r}"
    whose = f"tenants have {waiting}" if tenant is None else f"{waiting} belong to tenant {tenant!r}"
    print_page(listing, columns, whose, page=page, limit=limit, what="tenant")


def unsearched(unseen: int) -> str:
    """The text that some jobs were not compared with the filter."""
    return f"not searched: {count(unseen, 'job')} after the first ones."


def unread(unseen: int) -> str:
    """Return a note that there are more failed jobs than shown (`unseen` > 0), or fewer."""
    if unseen > 0:
        return f"{count(unseen, 'failed job')} in quorum queues cannot be listed, but requeue and discard include them."
    return (
        f"the queues have {count(-unseen, 'failed job')} fewer: a command is running, or removed jobs are listed until"
        " the next requeue or discard."
    )


def print_page(
    listing: Listing[Row],
    columns: Sequence[Column],
    none: str,
    *,
    page: int,
    limit: int,
    filter: JobFilter | AuditFilter = EVERYTHING,
    what: str = "job",
    unseen: Callable[[int], str] = unsearched,
) -> None:
    """Print a page of a list, and a note if there are more rows. `none` completes "no …" for an empty page.

    `filter` has the conditions of the user. `unseen` returns a note about jobs that the listing didn't read.
    """
    here, total = len(listing), listing.total
    if not filter.everything:
        none = f"{none} that match {filter}"
    pages = f"more {none}: {total:,} in all, on {count(-(-total // limit), 'page')}." if total else f"{none}."
    print_rows(listing.rows, columns, none=f"no {pages}")
    if here and (total is None or here < total) and not wants_json():
        of = "and there are more" if total is None else f"of {total:,}"
        note(f"page {page}: {count(here, what)} {of}. --page and --limit show others.")
    if listing.unseen:
        note(unseen(listing.unseen))


def _known(name: str) -> Callable[[Row], object]:
    """Return a column value for a worker's number: "?" if the worker didn't answer and the number is unknown."""
    return lambda row: "?" if row[name] is None else row[name]


def _running(row: Row) -> str:
    return ", ".join(
        " ".join(filter(None, (job["job"], job["id"], f"({job['preview']})" if job["preview"] else "", run_text(job))))
        for job in row["jobs"]
    )


def run_text(job: Row) -> str:
    """Return the progress of a running job, or else its last log line."""
    done = "" if job["progress"] is None else f"{job['progress']:.0%}"
    return " ".join(filter(None, (done, job["text"]))) or str(job["line"])
