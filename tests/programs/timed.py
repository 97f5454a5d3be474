"""Jobs that say when they run."""

import time

from shop import write

import palermo


def say(what):
    write("notes", f"{what} {time.time():.6f}")


@palermo.job
def stamp(text):
    say(text)


@palermo.job(retries=3, backoff=lambda attempt, error: 0.2 * 2**attempt)
def ship(order):
    job = palermo.current_job()
    say(f"{order}-{job.attempt}")
    raise ConnectionError(f"{order} in try {job.attempt}")


@ship.hook
def on_exhausted(error, order):
    say(f"{order}-exhausted")
