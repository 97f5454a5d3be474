"""Jobs that end in every way in which carmine's handlers do, and that are hung or killed."""

import os
import time

from shop import write

import palermo


@palermo.job
def success(text):
    write("notes", text)


@palermo.job
def error(text):
    raise ValueError(text)


@palermo.job(backoff=600)
def error_for_long(text):
    """Its first retry is not due while a test looks."""
    raise ValueError(text)


@palermo.job
def retry(text, delay):
    """Ask twice to be run again, and then end well."""
    attempt = palermo.current_job().attempt
    write("notes", f"{text} {attempt} {time.time()}")
    if attempt < 3:
        raise palermo.Retry("not yet", delay=delay)


@palermo.job(lock_for=3.0)
def hang(text):
    """Hang the first time, and say the next whether that run is still there."""
    if os.path.exists("notes"):
        with open("notes") as file:
            first = file.readline().split()[0]
        write("notes", f"{text} {os.path.exists('/proc/' + first)} {palermo.current_job().attempt}")
        return
    write("notes", f"{os.getpid()} hangs")
    time.sleep(600)
