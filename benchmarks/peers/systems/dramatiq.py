"""Dramatiq: a process per slot with one thread, or one process with a thread per slot."""

from collections.abc import Mapping

from benchmarks.peers.setup import Setup
from benchmarks.peers.systems.system import System


def _worker(setup: Setup) -> list[str]:
    processes, threads = (setup.slots, 1) if setup.pool == "process" else (1, setup.slots)
    shape = ["--processes", str(processes), "--threads", str(threads)]
    return ["-m", "dramatiq", "benchmarks.peers.apps.dramatiq", *shape]


def _environment(setup: Setup) -> Mapping[str, str]:
    """Not its own two messages a thread: one a slot, as the others. On redis it would wait behind each job with one."""
    if setup.url.startswith("redis"):
        return {}
    return {"dramatiq_queue_prefetch": str(1 if setup.pool == "process" else setup.slots)}


SYSTEM = System(
    name="dramatiq",
    distributions=("dramatiq", "pika"),
    imports="import dramatiq.brokers.rabbitmq",
    isolation={
        "process": "no: in a thread of the process of the connection",
        "thread": "no: in threads of the process of the connection",
    },
    stores=("rabbitmq", "redis"),
    worker=_worker,
    environment=_environment,
    extra_queues=lambda setup: [queue + suffix for queue in setup.queues for suffix in (".DQ", ".XQ")],
)
