"""A job that takes rows in batches, one of which may be bad."""

import signal

from shop import write

import palermo


@palermo.job(batch=10)
def load(rows):
    write("notes", " ".join(rows))
    for position, row in enumerate(rows):
        if row == "bad":
            rows.fail(position, ValueError(f"no row {row!r}"))


@palermo.job(batch=10, batch_wait=2)
def store(rows):
    """Mark each row as done; one kills the process."""
    for position, row in enumerate(rows):
        write("notes", row)
        if row == "bad":
            signal.raise_signal(signal.SIGSEGV)
        rows.done(position)
