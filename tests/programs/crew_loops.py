"""Jobs that use what their module keeps, as a program keeps a client of a database, and jobs that fork."""

import asyncio
import os

from crew import write

import palermo

lock = asyncio.Lock()
kept = []


async def hold():
    async with lock:
        await asyncio.sleep(0.01)


@palermo.job
async def shares(path):
    """A lock that two tasks wait for belongs to the loop of the first two."""
    await asyncio.gather(hold(), hold())
    write(path, "shared")


async def lingers(path):
    try:
        await asyncio.sleep(3_600)
    finally:
        write(path, "cleaned up")


@palermo.job
async def leaves_a_task(path):
    kept.append(asyncio.create_task(lingers(path), name="refresh"))
    await asyncio.sleep(0)
    write(path, "left")


@palermo.job
async def leaves_a_generator(path):
    async def count():
        try:
            yield 1
        finally:
            write(path, "generator closed")

    kept.append(count())
    await anext(kept[-1])


@palermo.job
def forks(path):
    pid = os.fork()
    if pid == 0:
        return
    write(path, f"child exited with {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")


@palermo.job
async def aforks(path):
    forks(path)


@palermo.job
def forks_and_fails(path):
    pid = os.fork()
    if pid == 0:
        raise LookupError("in the child")
    write(path, f"child exited with {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")
