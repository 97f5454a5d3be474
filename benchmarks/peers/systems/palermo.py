"""Palermo as it comes: journal, hooks and all else at their defaults."""

import os
from collections.abc import Mapping

from benchmarks.peers.setup import Setup
from benchmarks.peers.systems.system import System
from palermo.core.topology import amqp_queue

#: One for the whole run, so that its queues are its own also where the broker is not.
EXCHANGE = f"peers-{os.getpid()}"


def _worker(setup: Setup) -> list[str]:
    queues = ["-q", ",".join(setup.queues)]
    slots = ["-c", str(setup.slots), "--pool", setup.pool, "--prefetch", str(setup.prefetch)]
    return ["-m", "palermo", "worker", "benchmarks.peers.apps.palermo", *queues, *slots, "--log-level", "warning"]


def _environment(setup: Setup) -> Mapping[str, str]:
    return {
        "PALERMO_URL": setup.url if "://" in setup.url else f"sqlite:///{setup.url}",
        "PALERMO_EXCHANGE": _exchange(setup),
        "PALERMO_QUEUE_TYPE": "quorum" if setup.quorum else "classic",
    }


def _exchange(setup: Setup) -> str:
    """On redis one for each row: a worker there takes another of its exchange for dead that is held for seconds."""
    return f"{EXCHANGE}-{setup.queues[0]}" if setup.url.startswith("redis") else EXCHANGE


SYSTEM = System(
    name="palermo",
    distributions=("palermo", "pika", "uvloop"),
    imports="import palermo.client.client, palermo.brokers.rabbitmq",
    isolation={
        "process": "yes: a process per slot, none has the connection",
        "thread": "from the connection: all slots share one process",
        "async": "from the connection: all slots share one process",
    },
    stores=("rabbitmq", "redis", "sqlite"),
    many=True,
    quorum=True,
    worker=_worker,
    environment=_environment,
    amqp_queue=lambda queue: amqp_queue(EXCHANGE, queue),
    ours=True,
)
