"""Jobs for workers whose slots share a process; those with `a` in front are coroutines."""

import asyncio
import contextlib
import ctypes
import os
import sys
import time
from pathlib import Path

from crew import await_file, hold, note, write  # noqa: F401

import palermo
from palermo.errors import JobCancelled, JobTerminated, JobTimeout

TOLD = (JobTimeout, JobTerminated, JobCancelled)


async def opened(gate):
    """Wait until a file appears."""
    while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
        await asyncio.sleep(0.01)


def has_begun(path, text):
    """Whether an earlier run of this job wrote so."""
    return Path(path).exists() and f"{text} begins" in Path(path).read_text()


def bytecode(path):
    """Wait as Python does, for something to be raised in between."""
    write(path, "waits")
    while True:
        time.sleep(0.01)


@palermo.job
def tidies(path):
    try:
        bytecode(path)
    except TOLD as error:
        write(path, f"tidied after {type(error).__name__}")
        raise


@palermo.job
async def atidies(path):
    try:
        write(path, "waits")
        await asyncio.sleep(60)
    finally:
        write(path, "tidied")


@palermo.job
def stubborn(path):
    write(path, "waits")
    while True:
        with contextlib.suppress(*TOLD):
            while True:  # twice, for what is raised between two blocks
                with contextlib.suppress(*TOLD):
                    bytecode(path + ".more")


@palermo.job
async def astubborn(path):
    write(path, "waits")
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


@palermo.job
def hogs(path):
    """Hold the GIL, in C; in both pools that stops everything."""
    write(path, "waits")
    return sum(range(10**12))


@palermo.job
async def ahogs(path):
    write(path, "waits")
    return sum(range(10**12))


@palermo.job
async def ahold(path, gate, text="held"):
    write(path, f"{text} begins")
    await opened(gate)
    write(path, f"{text} ends")


@palermo.job
def crash_after(path, gate):
    write(path, "fuse begins")
    await_file(gate)
    ctypes.string_at(0)


@palermo.job
def survives(path, text):
    """Waits for somebody to crash; its second run ends."""
    again = has_begun(path, text)
    write(path, f"{text} begins {os.getpid()}")
    while not again:
        time.sleep(0.01)
    write(path, f"{text} ends")


@palermo.job
async def asurvives(path, text):
    again = has_begun(path, text)
    write(path, f"{text} begins {os.getpid()}")
    while not again:  # noqa: ASYNC110 - only a crash ends it
        await asyncio.sleep(0.01)
    write(path, f"{text} ends")


@palermo.job
async def meets(path, count):
    """End only when so many are here at once."""
    arrived.append(1)
    while len(arrived) < count:  # noqa: ASYNC110 - no event outlives a loop, and this list does
        await asyncio.sleep(0.01)
    write(path, "met")


arrived = []


@palermo.job
def tells_pid(path):
    write(path, str(os.getpid()))


@palermo.job
async def atells_pid(path):
    write(path, str(os.getpid()))


@palermo.job
def raises(name):
    raise {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt, "StopIteration": StopIteration}[name](name)


@palermo.job
async def araises(name):
    await asyncio.sleep(0)
    raise {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt, "Cancelled": asyncio.CancelledError}[name]


@palermo.job
async def cancels_itself():
    asyncio.current_task().cancel()
    await asyncio.sleep(0)


@palermo.job
async def cancels_itself_late():
    asyncio.current_task().cancel()


@palermo.job
async def cancels_everybody():
    for task in asyncio.all_tasks():
        task.cancel()


@palermo.job
async def leaves_a_task_that_exits():
    async def exits():
        sys.exit("from behind")

    task = asyncio.create_task(exits())
    await asyncio.sleep(0.05)
    assert task.done()


@palermo.job
async def stops_the_loop():
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.05)


@palermo.job
def eats(path, megabytes, seconds):
    write(path, f"{os.getpid()} eats")
    keep.append(b"x" * (megabytes * 1_000_000))
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.01)
    write(path, f"{os.getpid()} ate")


keep = []


@palermo.hook
def on_failure(definition, error, *args, **kwargs):
    if args and str(args[0]).startswith("/"):
        write(args[0], f"on_failure {type(error).__name__}")
