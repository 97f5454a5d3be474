"""`palermo failed`: look at failed jobs, run them again, throw them away."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from palermo.cli.command_group import INTERRUPTED, Context, on_interrupt
from palermo.cli.completion import complete_queue
from palermo.cli.enqueue import parse_args, parse_kwargs
from palermo.cli.job_ids import FAILED_JOBS, whole_ids
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
    listing = context.inspector().failed.list(offset=offset, limit=limit, newest=newest, filter=wanted, count=False)
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
    """Failed jobs of one kind together: same job, same exception, same place in the code.

    `palermo failed list --group GROUP` lists the jobs of one group, `palermo failed requeue --all --group GROUP` and
    `palermo failed discard --all --group GROUP` act on all of them.
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
        rows = context.inspector().failed.groups(FailedFilter(**filters), progress=show)
    print_rows(rows, columns, as_json=as_json, none="no failed jobs.")


@failed.command("show")
@click.argument("id")
@query_options
@click.pass_obj
def show(context: Context, /, id: str, as_json: bool) -> None:
    """Show all that is known about the failed job ID."""
    (whole,) = whole_ids(context, [id], FAILED_JOBS)
    row = context.inspector().failed.show(whole)
    if as_json:
        print_json(row)
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
    help="Requeue to this queue, not to the one each came from; asks if no worker serves it.",
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
    command is killed; run it again then. Up to 100 jobs may run twice after that, and more if RabbitMQ is killed.
    """
    wanted = _which(context, ids, every, FailedFilter(**filters))
    args, kwargs = parse_args(args_text), parse_kwargs(kwargs_text)
    if to_queue is not None:
        check_new_queue(to_queue)
    if every:
        ask_to_confirm(yes=yes)
    inspector = context.inspector()
    if not yes:
        unserved = "" if to_queue is None else inspector.queues.unserved(to_queue)
        number = inspector.failed.count(wanted) if every else len(ids)
        if number and (every or unserved):
            there = f"to queue {to_queue!r}" if to_queue is not None else ""
            confirm(" ".join(filter(None, (unserved, "Requeue", _counted(number, wanted), there))) + "?", yes=yes)
    errors: list[PalermoError] = []
    with _telling_how_far("requeued") as command, progress("requeue") as show:
        taken = inspector.failed.requeue(
            wanted,
            args=args,
            kwargs=kwargs,
            queue=to_queue,
            progress=show,
            on_error=errors.append,
            on_taken=command.on_taken,
            stop=command.stop,
        )
    _conclude("requeued", wanted, taken, errors, as_json=as_json, interrupted=command.interrupted)


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
        number = inspector.failed.count(wanted)
        if number:
            confirm(f"Throw away {_counted(number, wanted)} for good?", yes=yes)
    errors: list[PalermoError] = []
    with _telling_how_far("discarded") as command, progress("discard") as show:
        taken = inspector.failed.discard(
            wanted, progress=show, on_error=errors.append, on_taken=command.on_taken, stop=command.stop
        )
    _conclude("discarded", wanted, taken, errors, as_json=as_json, interrupted=command.interrupted)


def _counted(number: int, wanted: tuple[str, ...] | FailedFilter) -> str:
    which = f" with {wanted}" if isinstance(wanted, FailedFilter) and not wanted.everything else ""
    return f"{count(number, 'failed job')}{which}"


def _which(context: Context, ids: tuple[str, ...], every: bool, wanted: FailedFilter) -> tuple[str, ...] | FailedFilter:
    if ids and every:
        raise misuse("name ids or say --all, not both")
    if not ids and not every:
        if wanted.everything:
            raise misuse("name the ids of failed jobs, or say --all")
        raise misuse("filters act only with --all; add it")
    if ids and not wanted.everything:
        raise misuse("filters act only with --all, not with ids")
    return whole_ids(context, ids, FAILED_JOBS) if ids else wanted


class _LongCommand:
    """A command on many failed jobs: counts those that are done, and ends between two batches at Ctrl-C."""

    def __init__(self) -> None:
        self.taken = 0
        self.interrupted = False

    def on_taken(self, jobs: Sequence[TakenJob]) -> None:
        """Count jobs that are done."""
        self.taken += len(jobs)

    def stop(self) -> bool:
        """Whether to end before the next job."""
        return self.interrupted

    def interrupt(self, *_: object) -> None:
        """End after the jobs that are under way, which might else be done twice; a second call ends at once."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        note("ending after the jobs that are under way; Ctrl-C again ends at once.")


@contextmanager
def _telling_how_far(done: str) -> Iterator[_LongCommand]:
    """Say how many jobs were done when an error of the broker ends a command half-way, and that the others stay."""
    command = _LongCommand()
    try:
        with on_interrupt(command.interrupt):
            yield command
    except (BrokerError, KeyboardInterrupt) as error:
        if command.taken:
            end = "the error below" if isinstance(error, BrokerError) else "the interrupt"
            note(
                f"{done} {count(command.taken, 'job')} before {end}. The others stay: give the command again."
                f" Some may be both {done} and still failed."
            )
        raise


def _conclude(
    done: str,
    wanted: tuple[str, ...] | FailedFilter,
    taken: list[TakenJob],
    errors: list[PalermoError],
    *,
    as_json: bool,
    interrupted: bool,
) -> None:
    """Print what was done, then raise the first error; only NotFound if a filter matched nothing.

    A command that was interrupted does not know which jobs are not there.
    """
    if interrupted:
        errors = [error for error in errors if not isinstance(error, NotFound)]
    elif isinstance(wanted, FailedFilter) and not wanted.everything and not taken:
        errors.append(NotFound(f"no failed job matches {wanted}."))
    if as_json:
        print_json([job._asdict() for job in taken])
    elif taken or not errors:
        click.echo(f"{done} {count(len(taken), 'job')}.")
    if errors:
        raise errors[0]
    if interrupted:
        note("palermo: interrupted. The jobs that it has not come to stay.")
        raise click.exceptions.Exit(INTERRUPTED)
