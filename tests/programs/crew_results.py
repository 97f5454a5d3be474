"""Jobs whose results are kept, and that tell of themselves."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from crew import await_file, write

import palermo


@dataclass
class Sum:
    of: list[int]
    total: int


@palermo.job(keep_result=True)
def add(*numbers) -> Sum:
    return Sum(list(numbers), sum(numbers))


@palermo.job(keep_result=True)
def large(size):
    return "x" * size


@palermo.job(keep_result=True)
def raises(text):
    raise ValueError(text)


@palermo.job(keep_result=True)
def discards(text):
    raise palermo.Discard(text)


@palermo.job(keep_result=True, retries=1, backoff=0.1)
def fails_once(path):
    if palermo.current_job().attempt == 1:
        raise ConnectionError("once")
    return palermo.current_job().attempt


@palermo.job(keep_result=True, retries=1, backoff=3600)
def tries_later():
    raise ConnectionError("later")


@palermo.job
def unkept(text):
    return text


@palermo.job(keep_result=True)
def raises_later(gate):
    await_file(gate)
    raise ValueError("later")


@palermo.job(keep_result=True)
def tells(gate):
    """Tell something, wait until a file appears, tell more, and end."""
    job = palermo.current_job()
    job.progress(0.25, "one of four")
    job.log("begun\nand waiting")
    await_file(gate)
    for number in palermo.track(range(1_000), text="step"):
        job.log(f"line {number}")
    return "told"


@palermo.job(keep_result=True)
async def atells(gate):
    job = palermo.current_job()
    job.progress(0.25, "one of four")
    job.log("begun\nand waiting")
    while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
        await asyncio.sleep(0.01)
    for number in palermo.track(range(1_000), text="step"):
        job.log(f"line {number}")
    return "told"


@palermo.job(keep_result=True)
def counts(path, number):
    """Leave a trace of every run, and return what was asked."""
    write(path, str(number))
    return number
