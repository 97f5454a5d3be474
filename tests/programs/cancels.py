"""A runner without a worker: runs one job of crew_pools beside another, cancels it, and says what both came to.

python cancels.py POOL JOB NEIGHBOUR NOTES GRACE
"""

import asyncio
import json
import socket
import sys
import time
from pathlib import Path

from palermo.core.message import Message
from palermo.settings.settings import Settings
from palermo.worker.limits import Limits
from palermo.worker.options import WorkerOptions
from palermo.worker.pools.fork import fork_pool


def message(id, job, *args):
    return Message(
        id=id,
        queue="jobs",
        job=f"crew_pools.{job}",
        body=json.dumps(args).encode(),
        content_type="application/json",
    )


def written(notes):
    path = Path(notes)
    return set(path.read_text().splitlines()) if path.exists() else set()


def touch(gate):
    Path(gate).touch()


async def run(runner, slot, job):
    result = asyncio.get_running_loop().create_future()
    runner.run(slot, job, result.set_result)
    return await result


async def main(runner, job, neighbour, notes):
    await runner.start()
    other = asyncio.create_task(run(runner, 2, message("2", neighbour, notes, notes + ".gate")))
    cancelled = asyncio.create_task(run(runner, 1, message("1", job, notes)))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        await asyncio.sleep(0.02)
        if {"waits", "held begins"} <= written(notes):
            break
    runner.cancel(1)
    runner.cancel(3)
    first = await cancelled
    touch(notes + ".gate")
    print(type(first).__name__, type(await other).__name__)
    await runner.close()


if __name__ == "__main__":
    pool, job, neighbour, notes, grace = sys.argv[1:]
    options = WorkerOptions(
        settings=Settings(url="sqlite:///:memory:"),
        modules=("crew_pools", "crew"),
        pool=pool,
        concurrency=3,
        limits=Limits(timeout_grace=float(grace)),
    )
    runner = fork_pool(options, host=socket.gethostname(), in_child=lambda: None)
    asyncio.run(main(runner, job, neighbour, notes))
