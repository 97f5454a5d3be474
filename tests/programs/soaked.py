"""The jobs of the soak: they say that they begin and that they end, and some of them raise."""

import asyncio
import os
import time

import palermo


def open_file(name):
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


RUNS = open_file("runs")


def say(what, number, file=RUNS):
    job = palermo.current_job()
    # By the clock that all processes share.
    line = f"{what} {number} {job.id} {job.worker} {os.getpid()} {os.getppid()} {time.monotonic():.6f}\n"
    os.write(file, line.encode())


@palermo.job
def work(number, takes, raises):
    say("begins", number)
    time.sleep(takes)
    say("ends", number)
    if raises:
        raise ArithmeticError(number)


@palermo.job
async def wait(number, takes, raises):
    say("begins", number)
    await asyncio.sleep(takes)
    say("ends", number)
    if raises:
        raise ArithmeticError(number)
