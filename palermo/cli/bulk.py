"""Runs a command on many jobs: shows its progress, stops it at Ctrl-C, and prints the result."""

from collections.abc import Callable, Iterable
from typing import Any

import click

from palermo.cli.command_group import INTERRUPTED, note, on_interrupt
from palermo.cli.output import printed_json, progress
from palermo.core.text import count
from palermo.errors import BrokerError, NotFound, PalermoError
from palermo.inspector.judges import TakenJob


def run_on_jobs(
    verb: str,
    done: str,
    command: Callable[..., list[TakenJob]],
    which: object,
    *,
    of: str = "failed",
    **options: Any,
) -> None:
    """Run a command on failed jobs, or on jobs `of` another state, show its progress, and print the result.

    Raises the first error.

    Ctrl-C stops it after the jobs in progress, so that none of them is processed twice. A second Ctrl-C stops it
    immediately.
    """
    gone: list[TakenJob] = []
    interrupted = False
    errors: list[PalermoError] = []

    def interrupt(*_: object) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True
        note("ending after the current jobs; press Ctrl-C again to end immediately.")

    try:
        with on_interrupt(interrupt), progress(verb) as show:
            taken = command(
                which, progress=show, on_error=errors.append, on_taken=gone.extend, stop=lambda: interrupted, **options
            )
    except (BrokerError, KeyboardInterrupt) as error:
        if gone:
            end = "the error below" if isinstance(error, BrokerError) else "the interrupt"
            note(
                f"{done} {count(len(gone), 'job')} before {end}. The other jobs are unchanged. Run the command again."
                f" Some may be both {done} and still {of}."
            )
        raise
    if interrupted:
        # After an interrupt it is unknown which jobs are missing.
        errors = [error for error in errors if not isinstance(error, NotFound)]
    elif not taken and not isinstance(which, Iterable) and str(which) != "everything":
        errors.append(NotFound(f"no {of} job matches {which}."))
    if not printed_json([job._asdict() for job in taken]) and (taken or not errors):
        click.echo(f"{done} {count(len(taken), 'job')}.")
    if errors:
        raise errors[0]
    if interrupted:
        note("palermo: interrupted. Jobs not reached yet are unchanged.")
        raise click.exceptions.Exit(INTERRUPTED)
