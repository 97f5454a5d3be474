"""A storm: kills workers, including the leader, and the broker while workflows run, and then checks the results.

Each step must have ended at least once, under its own id; no step may start before the steps that it depends on have
run; and each workflow must be done with the right result. The number of steps that ran more than once is reported.
"""

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from palermo.errors import PalermoError
from tests import rabbitmq_found, redis_node
from tests.harness.processes import WorkerProcess
from tests.harness.rig import Rig
from tests.rabbitmq_node import url_of, with_durable_streams

#: The brokers of a storm. The last two are RabbitMQ with job queues of that type.
BROKERS = ("sqlite", "redis", "classic", "quorum")

#: Seconds within which everything must end after the last kill.
DRAIN = 600.0

#: Number of steps that must end between two bursts of kills, and maximum number of kills in a burst.
_PROGRESS, _BURST = 20, 5


class Size(Struct, frozen=True):
    """The number of workflows and kills."""

    chains: int = 200
    graphs: int = 20
    maps: int = 3
    members: int = 2_000
    worker_kills: int = 200
    broker_kills: int = 8


class Books(Struct):
    #: Each broken promise.
    wrongs: list[str]
    steps: int
    #: Number of steps that ran more than once, and of their additional runs.
    repeated: int
    repeats: int
    kills: Counter[str]
    seconds: float

    def __str__(self) -> str:
        killed = ", ".join(f"{count} of {what}" for what, count in sorted(self.kills.items()))
        return (
            f"{self.steps:,} steps in {self.seconds:.0f} s, kills: {killed or 'none'};"
            f" {self.repeated} steps ran again, {self.repeats} times; {len(self.wrongs)} broken promises"
        )


@contextmanager
def place(broker: str, path: Path) -> Iterator[tuple[Rig, Callable[[], None] | None]]:
    """Enter a rig on a broker of its own, with a function that kills and restarts the broker, or None for a file."""
    if broker == "sqlite":
        with Rig(path, module="storm") as rig:
            yield rig, None
        return
    with redis_node.running() if broker == "redis" else rabbitmq_found.find()() as node:
        if isinstance(node, redis_node.RedisNode):
            url, kind = node.url, "classic"
        else:
            url, kind = url_of(with_durable_streams(node)), broker

        def restart() -> None:
            node.kill9()
            node.start()

        with Rig(path, url, module="storm", queue_type=kind) as rig:
            yield rig, restart


def storm(rig: Rig, restart: Callable[[], None] | None, *, seed: int, size: Size) -> Books:
    """Run workflows while killing their processes, and check the results."""
    chance, kills, began = random.Random(seed), Counter[str](), time.monotonic()
    workers = {worker.pid: worker for worker in (_worker(rig) for _ in range(3))}
    rig.ready(*workers.values())
    wanted = {rig.enqueue("chain"): ("chain", 5) for _ in range(size.chains)}
    wanted |= {rig.enqueue("graph"): ("graph", 3) for _ in range(size.graphs)}
    total = size.members * (size.members - 1) // 2
    wanted |= {rig.enqueue("fan", size.members): ("fan", total) for _ in range(size.maps)}
    steps = dict(edge for id, (kind, _) in wanted.items() for edge in _steps(id, kind, size.members))

    left = ["worker"] * size.worker_kills + ["broker"] * (size.broker_kills if restart else 0)
    chance.shuffle(left)
    while left and not (done := _ended(rig)) >= steps.keys():
        for _ in range(chance.randint(1, _BURST)):
            time.sleep(chance.uniform(0.05, 0.5))
            if not left:
                break
            if left.pop() == "broker" and restart is not None:
                restart()
                kills["the broker"] += 1
                continue
            leader = _leader(rig) if chance.random() < 0.3 else None
            victim = leader if leader in workers else chance.choice(sorted(workers))
            workers.pop(victim).kill9()
            kills["the leader" if victim == leader else "workers"] += 1
            new = _worker(rig)
            workers[new.pid] = new
        deadline = time.monotonic() + DRAIN
        while len(_ended(rig)) < min(len(done) + _PROGRESS, len(steps)) and time.monotonic() < deadline:
            time.sleep(0.1)
    return Books(
        wrongs=[*_wrong_results(rig, wanted), *_wrong_steps(rig, steps)],
        steps=len(steps),
        repeated=sum(count > 1 for count in _begun(rig).values()),
        repeats=sum(count - 1 for count in _begun(rig).values()),
        kills=kills,
        seconds=time.monotonic() - began,
    )


def _worker(rig: Rig) -> WorkerProcess:
    return rig.worker("-c", "2", PALERMO_MAX_DEATHS="none")


def _steps(id: str, kind: str, members: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the ids of a workflow's steps, each with those before it."""
    match kind:
        case "chain":
            for place in range(5):
                yield f"{id}/link-{place}", (f"{id}/link-{place - 1}",) if place else ()
        case "graph":
            for side in ("left", "right"):
                yield f"{id}/{side}/a", ()
                yield f"{id}/{side}/b", (f"{id}/{side}/a",)
            yield f"{id}/join", (f"{id}/left/b", f"{id}/right/b")
        case _:
            those = tuple(f"{id}/member:{number}" for number in range(members))
            yield from ((member, ()) for member in those)
            yield f"{id}/add", those


def _lines(rig: Rig) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(rig.lines("steps")):
        what, id = line.split()
        yield number, what, id


def _ended(rig: Rig) -> set[str]:
    return {id for _, what, id in _lines(rig) if what == "ends"}


def _begun(rig: Rig) -> Counter[str]:
    return Counter(id for _, what, id in _lines(rig) if what == "begins")


def _leader(rig: Rig) -> int | None:
    """Return the pid of the leader, or None if unknown."""
    try:
        return next((row["pid"] for row in rig.workers() if "main" in (row["duties"] or ())), None)
    except PalermoError:
        return None


def _wrong_results(rig: Rig, wanted: dict[str, tuple[str, int]]) -> Iterator[str]:
    deadline = time.monotonic() + DRAIN
    for id, (kind, result) in wanted.items():
        try:
            found = rig.client.job_by_id(id).result(timeout=max(1.0, deadline - time.monotonic()))
        except PalermoError as error:
            found = repr(error)
        if found != result:
            yield f"{kind} {id}: {found} instead of {result}"
    yield from (f"failed: {row}" for row in rig.failed().values())
    while (rows := rig.inspector.workflows.list()) and time.monotonic() < deadline:
        time.sleep(0.1)
    yield from (f"not over: {row}" for row in rows)


def _wrong_steps(rig: Rig, steps: dict[str, tuple[str, ...]]) -> Iterator[str]:
    begins, ends = dict[str, int](), dict[str, int]()
    for number, what, id in _lines(rig):
        (begins if what == "begins" else ends).setdefault(id, number)
    yield from (f"lost: {id}" for id in steps if id not in ends)
    yield from (f"of another id: {id}" for id in begins.keys() - steps)
    for id, before in steps.items():
        if early := [one for one in before if ends.get(one, 0) > begins.get(id, 0)]:
            yield f"early: {id} began before {early[0]} had ended"


def storms(brokers: Sequence[str], *, seed: int, size: Size, say: Callable[[str], None]) -> list[str]:
    """Run a storm on each of these brokers, and return every broken promise."""
    wrongs = list[str]()
    for broker in brokers:
        path = Path(tempfile.mkdtemp(prefix=f"palermo-storm-{broker}-"))
        with place(broker, path) as (rig, restart):
            books = storm(rig, restart, seed=seed, size=size)
        say(f"storm on {broker}, SEED={seed:x}: {books}; files in {path}")
        wrongs += [f"{broker}: {wrong}" for wrong in books.wrongs]
    return wrongs
