"""FastStream: a process per slot, or one process with a coroutine per slot."""

from benchmarks.peers.setup import Setup
from benchmarks.peers.systems.system import System


def _worker(setup: Setup) -> list[str]:
    processes = ["--workers", str(setup.slots)] if setup.pool == "process" and setup.slots > 1 else []
    return ["-m", "faststream", "run", "benchmarks.peers.apps.faststream:app", *processes]


SYSTEM = System(
    name="faststream",
    distributions=("faststream", "aio-pika", "aiormq", "uvloop"),
    imports="import faststream.rabbit",
    isolation={
        "process": "no: in the process of the connection",
        "async": "no: in the process of the connection",
    },
    many=True,
    quorum=True,
    worker=_worker,
)
