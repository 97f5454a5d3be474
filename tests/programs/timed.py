"""Jobs that say when they run."""

import time

from shop import write

import palermo


def say(what):
    write("notes", f"{what} {time.time():.6f}")


@palermo.job
def stamp(text):
    say(text)


@palermo.job
def stamp_and_hold(text):
    say(f"{text}-begins")
    time.sleep(1.5)
    say(f"{text}-ends")


@palermo.job(retries=25)
def charge(order):
    raise ConnectionError(order)


@palermo.job(retries=3, backoff=lambda attempt, error: 0.2 * 2**attempt)
def ship(order):
    job = palermo.current_job()
    say(f"{order}-{job.attempt}")
    raise ConnectionError(f"{order} in try {job.attempt}")


@ship.hook
def on_exhausted(error, order):
    say(f"{order}-exhausted")


@palermo.job(retries=5, backoff=lambda attempt, error: error.args[0])
def told(verdict):
    say(f"told-{verdict}")
    raise ValueError(verdict)


@palermo.job(backoff=0.3, retry_for=1.0)
def impatient():
    say("impatient")
    raise TimeoutError
