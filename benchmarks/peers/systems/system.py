"""The facts about a system that the driver needs to run it and to compare it."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.peers.setup import Pool, Setup

#: The queue in which jobs wait.
Store = Literal["rabbitmq", "redis", "sqlite"]


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One that takes part."""

    #: Also the name of its module in benchmarks.peers.apps.
    name: str
    #: Distributions whose versions matter, its own first.
    distributions: tuple[str, ...]
    #: The module that a program imports to enqueue.
    imports: str
    #: The place in which a job runs, by pool. Other pools are not available.
    isolation: Mapping[Pool, str]
    #: The stores in which its jobs can wait.
    stores: tuple[Store, ...] = ("rabbitmq",)
    #: Whether one call enqueues many, all stored when it returns.
    many: bool = False
    #: Whether it makes quorum queues.
    quorum: bool = False
    #: Whether one worker serves many queues.
    queues: bool = True
    #: The guarantee that it lacks in comparison with the others; "" if none.
    weaker: str = ""
    #: The arguments behind `python` that start its worker.
    worker: Callable[[Setup], list[str]]
    #: The environment variables of its processes.
    environment: Callable[[Setup], Mapping[str, str]] = lambda setup: {}
    #: The name in RabbitMQ of a queue.
    amqp_queue: Callable[[str], str] = lambda queue: queue
    #: Further queues of RabbitMQ that it makes for these.
    extra_queues: Callable[[Setup], list[str]] = lambda setup: []
    #: Whether it runs in the Python that Palermo is installed in, instead of the peers' own.
    ours: bool = False

    def python(self, venv: Path) -> str:
        """The Python that runs it."""
        return sys.executable if self.ours else str(venv / "bin" / "python")
