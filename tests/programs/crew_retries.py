"""A job that fails each time that it is tried."""

from crew import write

import palermo


@palermo.job(retries=3, backoff=0)
def fails(path, name):
    write(path, f"{name} {palermo.current_job().attempt}")
    raise ValueError(f"{name} in try {palermo.current_job().attempt}")


@fails.hook
def on_exhausted(error, path, name):
    write(path, f"{name} exhausted by {error}")
