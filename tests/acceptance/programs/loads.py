"""A job that takes rows in batches, one of which may be bad."""

from shop import write

import palermo


@palermo.job(batch=10)
def load(rows):
    write("notes", " ".join(rows))
    for position, row in enumerate(rows):
        if row == "bad":
            rows.fail(position, ValueError(f"no row {row!r}"))
