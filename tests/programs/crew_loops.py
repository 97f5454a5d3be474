"""Jobs that use what their module keeps, as a program keeps a client of a database, and jobs that fork."""

import asyncio
import os

import palermo

lock = asyncio.Lock()
kept = []


def note(path, text):
    with open(path, "a") as file:
        file.write(f"{text}\n")


async def hold():
    async with lock:
        await asyncio.sleep(0.01)


@palermo.job
async def shares(path):
    """A lock that two tasks wait for belongs to the loop of the first two."""
    await asyncio.gather(hold(), hold())
    note(path, "shared")


async def lingers(path):
    try:
        await asyncio.sleep(3_600)
    finally:
        note(path, "cleaned up")


@palermo.job
async def leaves_a_task(path):
    kept.append(asyncio.create_task(lingers(path), name="refresh"))
    await asyncio.sleep(0)
    note(path, "left")


@palermo.job
async def leaves_a_generator(path):
    async def count():
        try:
            yield 1
        finally:
            note(path, "generator closed")

    kept.append(count())
    await anext(kept[-1])


@palermo.job
def forks(path):
    pid = os.fork()
    if pid == 0:
        return
    note(path, f"child exited with {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")


@palermo.job
async def aforks(path):
    forks(path)


@palermo.job
def forks_and_fails(path):
    pid = os.fork()
    if pid == 0:
        raise LookupError("in the child")
    note(path, f"child exited with {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")
