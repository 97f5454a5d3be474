"""Workers that end while the disk is full: in good order, or killed."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from palermo.brokers.sqlite.file import opening
from tests.contract.test_sqlite_files import change, opened
from tests.contract.tools import Report, consume, message, take

#: A worker that takes one job, while the disk is full from then on, and ends as argument 2 says.
_ENDS_ON_A_FULL_DISK = """
import asyncio, os, sqlite3, sys
from palermo.contract.broker import SessionParameters, open_broker
from palermo.core.address import parse_url
from tests.contract.tools import consume, take

async def main(path, how):
    broker = await open_broker(SessionParameters(address=parse_url(f"sqlite:///{path}")))
    worker = await consume(broker)
    await take(worker)
    (consumer,) = broker._consumers
    with sqlite3.connect(path) as db:
        for event in ("update of holder", "delete"):
            db.execute(f"create trigger full_{event[:6]} before {event} on job begin select raise(abort, 'full'); end")
    if how == "killed":
        os.kill(os.getpid(), 9)
    if how == "lost":
        consumer._lose(asyncio.InvalidStateError("full"))
    await worker.close()
    await broker.close()
    return broker.after_failure()  # as a worker that is stopped while it waits for its next session

unfinished = asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(("how", "deaths"), [("stopped", ()), ("lost", ()), ("killed", ("pid:4711@example",))])
async def test_a_worker_ending_on_a_full_disk_has_not_died_of_its_job(
    tmp_path: Path, how: str, deaths: tuple[str, ...]
) -> None:
    path = tmp_path / "jobs.db"
    broker = await opened(path)
    await broker.publish(message("7c9e"))
    command = [sys.executable, "-c", _ENDS_ON_A_FULL_DISK, str(path), how]
    await asyncio.to_thread(subprocess.run, command, check=how != "killed")
    change(path, "drop trigger full_update")
    change(path, "drop trigger full_delete")
    for file in side_files(path):
        os.utime(file, (0, 0))  # its file is old: the next session to open must not remove it

    next = await opened(path)

    again = await take(await consume(next, report=Report("jobs", pid=2)))

    assert (again.message.id, again.redelivered, again.deaths) == ("7c9e", True, deaths)
    await next.close()
    await broker.close()


def side_files(path: Path) -> list[Path]:
    return list(Path(opening.side_directory(str(path))).glob("*.lock"))
