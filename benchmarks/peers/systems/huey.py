"""Huey on SQLite, against Palermo's embedded broker, and on redis."""

from benchmarks.peers.setup import Setup
from benchmarks.peers.systems.system import System


def _worker(setup: Setup) -> list[str]:
    shape = ["-w", str(setup.slots), "-k", setup.pool]
    return ["-m", "huey.bin.huey_consumer", "benchmarks.peers.apps.huey.huey", *shape, "-q"]


SYSTEM = System(
    name="huey",
    distributions=("huey",),
    imports="import huey",
    isolation={
        "process": "in part: a process per slot, which takes its jobs itself",
        "thread": "no: in threads of the process that takes the jobs",
    },
    stores=("redis", "sqlite"),
    queues=False,
    weaker="removes a job before it runs it: what dies is lost",
    worker=_worker,
)
