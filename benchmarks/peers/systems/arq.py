"""arq on redis: coroutines of one process, which looks for jobs again and again."""

from benchmarks.peers.setup import Setup
from benchmarks.peers.systems.system import System


def _worker(setup: Setup) -> list[str]:
    return ["-m", "arq", "benchmarks.peers.apps.arq.WorkerSettings"]


SYSTEM = System(
    name="arq",
    distributions=("arq", "redis", "hiredis"),
    imports="import arq",
    isolation={"async": "no: in the process of the connection"},
    stores=("redis",),
    many=True,
    queues=False,
    worker=_worker,
)
