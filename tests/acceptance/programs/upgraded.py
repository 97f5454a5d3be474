"""Jobs that an earlier version of Palermo enqueues, and that this one works. Each run writes a line."""

import os
from pathlib import Path

import palermo


def write(text, file="notes"):
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


@palermo.job(queue="waiting")
def note(text):
    write(text)


@palermo.job(queue="paused")
def held(text):
    write(text)


@palermo.job(queue="waiting", limit=1)
def limited(text):
    write(text)


@palermo.job(queue="waiting", unique="until_done")
def unique(text):
    write(text)


@palermo.job(queue="done", keep_result=True)
def kept(text):
    write(text)
    write(palermo.__file__, "versions")
    return {"kept": text}


@palermo.job(queue="done")
def mended(text):
    if not Path("mended").exists():
        raise ValueError("not mended yet")
    write(text)


@palermo.job(queue="waiting", cron="0 0 1 1 *", schedule_name="declared", schedule_args=("declared",))
def yearly(text):
    write(text)


@palermo.subscribe("order.*", group="orders")
def ordered(payload):
    write(payload)
