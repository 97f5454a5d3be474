"""taskiq: a process per slot, or one process with a coroutine per slot. It takes uvloop by itself."""

from benchmarks.peers.setup import Setup
from benchmarks.peers.systems.system import System


def _worker(setup: Setup) -> list[str]:
    processes, tasks = (setup.slots, 1) if setup.pool == "process" else (1, setup.slots)
    shape = ["--workers", str(processes), "--max-async-tasks", str(tasks)]
    return ["-m", "taskiq", "worker", "benchmarks.peers.apps.taskiq:broker", *shape, "--log-level", "ERROR"]


SYSTEM = System(
    name="taskiq",
    distributions=("taskiq", "taskiq-aio-pika", "aio-pika", "aiormq", "uvloop"),
    imports="import taskiq, taskiq_aio_pika",
    isolation={
        "process": "no: in the process of the connection",
        "async": "no: in the process of the connection",
    },
    many=True,
    quorum=True,
    worker=_worker,
    extra_queues=lambda setup: [f"{setup.queues[0]}.dead"],
)
