"""`palermo failed`: look at failed jobs, run them again, throw them away."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from palermo.cli.command_group import Context
from palermo.cli.completion import complete_queue
from palermo.cli.enqueue import parse_args, parse_kwargs
from palermo.cli.job_ids import failed_ids, whole_ids
from palermo.cli.listings import note_unread, print_page
from palermo.cli.options import filter_options, paging_options, query_options, yes_option
from palermo.cli.output import (
    Column,
    ask_to_confirm,
    confirm,
    field,
    misuse,
    note,
    print_facts,
    print_json,
    print_rows,
    progress,
)
from palermo.core.text import count, one_line, safe
from palermo.core.topology import check_new_queue
from palermo.errors import BrokerError, NotFound, PalermoError
from palermo.inspector.failed import OnTaken
from palermo.inspector.failed_filter import FailedFilter
from palermo.inspector.judges import TakenJob


@click.group()
def failed() -> None:
    """Look at failed jobs, requeue or discard them."""


@failed.command("list")
@query_options
@paging_options
@filter_options
@click.pass_obj
def list_failed(context: Context, /, as_json: bool, limit: int, page: int, newest: bool, **filters: Any) -> None:
    """List failed jobs, the one that failed first on top."""
    offset = (page - 1) * limit
    wanted = FailedFilter(**filters)
    listing = context.inspector().failed(offset=offset, limit=limit, newest=newest, filter=wanted, count=False)
    columns: list[Column] = [
        field("Id"),
        field("Queue"),
        field("Job"),
        ("Failed", lambda row: row["failed_at"]),
        field("Retries"),
        ("Error", lambda row: f"{row['error']['class']}: {row['error']['message']}" if row["error"] else ""),
    ]
    what = "failed jobs" if wanted.everything else f"failed jobs with {wanted}"
    print_page(listing, columns, what, page=page, limit=limit, as_json=as_json)
    note_unread(listing.unseen)


@failed.command("groups")
@query_options
@filter_options
@click.pass_obj
def list_groups(context: Context, /, as_json: bool, **filters: Any) -> None:
    """Failed jobs of one kind together: same job, same exception, same place in the code."""
    columns: list[Column] = [
        field("Count"),
        field("Job"),
        field("Last", "last_seen"),
        field("Newest id", "id"),
        ("Error", lambda row: f"{row['error']}: {row['message']}"),
    ]
    with progress("group", of="failed jobs") as show:
        rows = context.inspector().groups(FailedFilter(**filters), progress=show)
    print_rows(rows, columns, as_json=as_json, none="no failed jobs.")


@failed.command("show")
@click.argument("id")
@query_options
@click.pass_obj
def show(context: Context, /, id: str, as_json: bool) -> None:
    """Show all that is known about the failed job ID."""
    (whole,) = whole_ids(context, [id], failed_ids)
    row = context.inspector().failed_job(whole)
    if as_json:
        print_json(row)
        return
    error = row["error"] or {"class": None, "message": None, "traceback": ""}
    arguments = None if row["args"] is None else [*map(repr, row["args"])]
    arguments = arguments and [*arguments, *(f"{name}={value!r}" for name, value in row["kwargs"].items())]
    print_facts(
        (
            ("id", row["id"]),
            ("job", row["job"]),
            ("queue", row["queue"]),
            ("topic", row["topic"]),
            ("parent", row["parent"]),
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


def _selection_options(command: Any) -> Any:
    command = click.option("--all", "every", is_flag=True, help="All of them, or all that the filters match.")(
        filter_options(command)
    )
    return click.argument("ids", nargs=-1, metavar="[ID]...")(command)


@failed.command("requeue")
@_selection_options
@click.option("--args", "args_text", metavar="JSON", help="Other positional arguments, as a JSON array.")
@click.option("--kwargs", "kwargs_text", metavar="JSON", help="Other named arguments, as a JSON object.")
@click.option(
    "--to-queue",
    "--queue-to",
    "to_queue",
    metavar="QUEUE",
    shell_complete=complete_queue,
    help="Another queue than the one it came from.",
)
@yes_option
@query_options
@click.pass_obj
def requeue(
    context: Context,
    /,
    ids: tuple[str, ...],
    every: bool,
    args_text: str | None,
    kwargs_text: str | None,
    to_queue: str | None,
    yes: bool,
    as_json: bool,
    **filters: Any,
) -> None:
    """Run failed jobs again: those named, or with --all those that the filters match.

    Each is stored in its queue before it leaves `failed`, so that nothing is lost if this
    command is killed; run it again then.
    """
    wanted = _which(context, ids, every, FailedFilter(**filters))
    args, kwargs = parse_args(args_text), parse_kwargs(kwargs_text)
    if to_queue is not None:
        check_new_queue(to_queue)
    errors: list[PalermoError] = []
    with progress("requeue") as show, _telling_how_far("requeued") as on_taken:
        taken = context.inspector().requeue(
            wanted,
            args=args,
            kwargs=kwargs,
            queue=to_queue,
            progress=show,
            on_error=errors.append,
            on_taken=on_taken,
        )
    _conclude("requeued", wanted, taken, errors, as_json=as_json)


@failed.command("discard")
@_selection_options
@yes_option
@query_options
@click.pass_obj
def discard(context: Context, /, ids: tuple[str, ...], every: bool, yes: bool, as_json: bool, **filters: Any) -> None:
    """Throw failed jobs away: those named, or with --all those that the filters match."""
    wanted = _which(context, ids, every, FailedFilter(**filters))
    ask_to_confirm(yes=yes)
    inspector = context.inspector()
    if not yes:
        number = inspector.count_failed(wanted)
        if number:
            confirm(f"Throw away {count(number, 'failed job')} for good?", yes=yes)
    errors: list[PalermoError] = []
    with progress("discard") as show, _telling_how_far("discarded") as on_taken:
        taken = inspector.discard(wanted, progress=show, on_error=errors.append, on_taken=on_taken)
    _conclude("discarded", wanted, taken, errors, as_json=as_json)


def _which(context: Context, ids: tuple[str, ...], every: bool, wanted: FailedFilter) -> tuple[str, ...] | FailedFilter:
    if ids and every:
        raise misuse("name ids or say --all, not both")
    if not ids and not every:
        if wanted.everything:
            raise misuse("name the ids of failed jobs, or say --all")
        raise misuse("filters act only with --all; add it")
    if ids and not wanted.everything:
        raise misuse("filters act only with --all, not with ids")
    return whole_ids(context, ids, failed_ids) if ids else wanted


@contextmanager
def _telling_how_far(done: str) -> Iterator[OnTaken]:
    """Say how many jobs were done when an error of the broker ends a command half-way, and that the others stay."""
    taken = 0

    def take(jobs: Sequence[TakenJob]) -> None:
        nonlocal taken
        taken += len(jobs)

    try:
        yield take
    except BrokerError:
        if taken:
            note(f"{done} {count(taken, 'job')} before the error below. The others stay: give the command again.")
        raise


def _conclude(
    done: str,
    wanted: tuple[str, ...] | FailedFilter,
    taken: list[TakenJob],
    errors: list[PalermoError],
    *,
    as_json: bool,
) -> None:
    """Print what was done, then raise the first error; only NotFound if a filter matched nothing."""
    if isinstance(wanted, FailedFilter) and not wanted.everything and not taken:
        errors.append(NotFound(f"no failed job matches {wanted}."))
    if as_json:
        print_json([job._asdict() for job in taken])
    elif taken or not errors:
        click.echo(f"{done} {count(len(taken), 'job')}.")
    if errors:
        raise errors[0]
