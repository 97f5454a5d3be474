"""RQ on redis: a fork for each job."""

from benchmarks.peers.setup import Setup
from benchmarks.peers.systems.system import System


def _worker(setup: Setup) -> list[str]:
    command = ["worker"] if setup.slots == 1 else ["worker-pool", "-n", str(setup.slots)]
    return ["-m", "rq.cli", *command, "-q", "-u", setup.url, "-S", "json", *setup.queues]


SYSTEM = System(
    name="rq",
    distributions=("rq", "redis"),
    imports="import rq, redis",
    isolation={"process": "yes: a process per job"},
    stores=("redis",),
    many=True,
    weaker="a redis instead of RabbitMQ",
    worker=_worker,
)
