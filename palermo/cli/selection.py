"""The jobs that a command acts on: ids, or `--all` with filters; and what a long command says about them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import click

from palermo.cli.command_group import INTERRUPTED, Context, on_interrupt
from palermo.cli.job_ids import whole_ids
from palermo.cli.options import Options, all_of, query_options, yes_option
from palermo.cli.output import misuse, note, printed_json, progress
from palermo.core.text import count
from palermo.errors import BrokerError, NotFound, PalermoError
from palermo.inspector.judges import TakenJob


def selection_options(filters: Options) -> Options:
    """Add ids, `--all`, these filters, `--yes` and `--json`."""
    return all_of(
        click.argument("ids", nargs=-1, metavar="[ID]..."),
        click.option("--all", "every", is_flag=True, help="All jobs, or all that the filters match."),
        filters,
        yes_option,
        query_options,
    )


def chosen_ids(
    context: Context, states: Collection[str], filters: Mapping[str, object], *, ids: Sequence[str], every: bool
) -> tuple[str, ...] | None:
    """The given ids, completed to ids of jobs in these states; None for `--all`. Raises click.UsageError."""
    if bool(ids) == every:
        raise misuse("name ids, or say --all with filters" + (", not both" if every else ""))
    if ids and any(value is not None for value in filters.values()):
        raise misuse("filters act only with --all, not with ids")
    return whole_ids(context, ids, states) if ids else None


def run_on_failed(verb: str, done: str, command: Callable[..., list[TakenJob]], which: object, **options: Any) -> None:
    """Run a command on failed jobs, show its progress, and print what it did. Raises the first error.

    Ctrl-C ends it after the jobs under way, which might otherwise be done twice; a second Ctrl-C ends it immediately.
    """
    gone = 0
    interrupted = False
    errors: list[PalermoError] = []

    def interrupt(*_: object) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True
        note("ending after the jobs under way; Ctrl-C again ends immediately.")

    def on_taken(jobs: Sequence[TakenJob]) -> None:
        nonlocal gone
        gone += len(jobs)

    try:
        with on_interrupt(interrupt), progress(verb) as show:
            taken = command(
                which, progress=show, on_error=errors.append, on_taken=on_taken, stop=lambda: interrupted, **options
            )
    except (BrokerError, KeyboardInterrupt) as error:
        if gone:
            end = "the error below" if isinstance(error, BrokerError) else "the interrupt"
            note(
                f"{done} {count(gone, 'job')} before {end}. The other jobs are unchanged: run the command again."
                f" Some may be both {done} and still failed."
            )
        raise
    if interrupted:
        # An interrupted command doesn't know which jobs are missing.
        errors = [error for error in errors if not isinstance(error, NotFound)]
    elif not taken and not isinstance(which, Iterable) and str(which) != "everything":
        errors.append(NotFound(f"no failed job matches {which}."))
    if not printed_json([job._asdict() for job in taken]) and (taken or not errors):
        click.echo(f"{done} {count(len(taken), 'job')}.")
    if errors:
        raise errors[0]
    if interrupted:
        note("palermo: interrupted. Jobs not reached yet are unchanged.")
        raise click.exceptions.Exit(INTERRUPTED)
