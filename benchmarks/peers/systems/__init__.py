"""The systems that take part: one module a system, each with a SYSTEM. Nothing here imports a peer's library."""

from benchmarks.peers.systems import arq, celery, dramatiq, faststream, huey, palermo, raw, rq, taskiq
from benchmarks.peers.systems.system import System

#: By name, in the order in which they take turns.
SYSTEMS: dict[str, System] = {
    each.SYSTEM.name: each.SYSTEM for each in (raw, palermo, celery, dramatiq, taskiq, faststream, huey, rq, arq)
}
