"""The workloads: their work, the systems that play them, and the units of their figures."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.peers.contender import Contender
from benchmarks.peers.players import Draining, Enqueuing, Idling, Importing, Player, Starting, Waiting
from benchmarks.peers.scores import Metric
from benchmarks.peers.setup import Setup
from benchmarks.peers.systems import SYSTEMS
from benchmarks.peers.systems.system import Store, System

_RATE = (Metric(key="rate", head="jobs/s"), Metric(key="cpu", head="CPU µs a job"))
_WAITS = tuple(Metric(key=key, head=f"{key} ms", digits=2) for key in ("p50", "p95", "p99"))
_MEMORY = (
    Metric(key="memory", head="MB (PSS)", digits=1),
    Metric(key="processes", head="processes"),
    Metric(key="idle", head="% of a core when idle", digits=1),
)
_START = (Metric(key="start", head="ms to the first job"), Metric(key="end", head="ms from TERM to exit"))
_IMPORT = (Metric(key="wall", head="ms"), Metric(key="cpu", head="CPU ms"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row of a workload: a system, and how it is set up."""

    label: str
    system: System
    setup: Setup
    store: Store = "rabbitmq"
    #: Number of queues.
    queues: int = 1

    @property
    def isolation(self) -> str:
        """Where its jobs run."""
        return self.system.isolation.get(self.setup.pool, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What all its entries do in turns, over some rounds."""

    name: str
    title: str
    entries: tuple[Entry, ...]
    #: The label that the others are compared to.
    base: str
    player: Callable[[Contender], Player]
    #: The first is the one that is compared.
    metrics: tuple[Metric, ...]
    #: Whether less of it is better.
    less: bool = False
    #: Turns of each entry in a round.
    turns: int = 1
    #: More than these rounds are not needed.
    most_rounds: int = 1_000
    #: Whether its table says where jobs run.
    runs_jobs: bool = True


def _entries(
    setup: Setup, *systems: str, store: Store = "rabbitmq", queues: int = 1, suffix: str = ""
) -> tuple[Entry, ...]:
    """The systems in the order of SYSTEMS; RQ has a redis in the place of RabbitMQ."""
    return tuple(
        Entry(
            label=name + suffix,
            system=SYSTEMS[name],
            setup=setup,
            store="redis" if name == "rq" else store,
            queues=queues,
        )
        for name in systems
    )


_ALL = tuple(name for name, system in SYSTEMS.items() if "rabbitmq" in system.stores or name == "rq")
_MANY = tuple(name for name in _ALL if SYSTEMS[name].many)
_QUORUM = tuple(name for name in _ALL if SYSTEMS[name].quorum)

#: What is imported where jobs are declared, and nothing is enqueued yet.
_DECLARING = Entry(
    label="palermo-declaring", system=replace(SYSTEMS["palermo"], imports="import palermo; palermo.job"), setup=Setup()
)

#: For queues that are filled before a worker is measured.
_FILL = Setup(confirm=False)


def _slots(slots: int) -> Setup:
    return _FILL.changed(slots=slots)


def _ahead(slots: int) -> tuple[Entry, ...]:
    """Palermo with slots that hold 16 jobs each."""
    return _entries(_slots(slots).changed(prefetch=16), "palermo", suffix="-ahead")


def _drain(name: str, title: str, entries: tuple[Entry, ...], *, scale: float, base: str = "raw") -> Workload:
    player = partial(Draining, seconds=0.25 * scale)
    return Workload(name=name, title=title, entries=entries, base=base, player=player, metrics=_RATE, turns=2)


def _enqueue(
    name: str, title: str, entries: tuple[Entry, ...], *, jobs: int, many: bool = False, base: str = "raw"
) -> Workload:
    player = partial(Enqueuing, jobs=max(1, jobs), many=many)
    return Workload(
        name=name, title=title, entries=entries, base=base, player=player, metrics=_RATE, turns=4, runs_jobs=False
    )


def workloads(scale: float = 1.0) -> tuple[Workload, ...]:
    """All of them; `scale` makes their turns longer or shorter."""
    return (*_enqueuing(scale), *_draining(scale), *_resting(scale), *_other_stores(scale), *_on_redis(scale))


def _enqueuing(scale: float) -> tuple[Workload, ...]:
    return (
        _enqueue(
            "enqueue-one",
            "one producer, one call after another, each returning when the job is stored",
            _entries(Setup(), *_ALL),
            jobs=int(150 * scale),
        ),
        _enqueue(
            "enqueue-many",
            "one producer, 1,000 jobs by one call, all stored when it returns (raw: a window of 1,000)",
            _entries(Setup(), *_MANY),
            jobs=int(1_000 * scale),
            many=True,
        ),
    )


def _draining(scale: float) -> tuple[Workload, ...]:
    raw = _entries(_slots(1), "raw")
    threads = _slots(8).changed(pool="thread")
    coroutines = _slots(100).changed(pool="async")
    return (
        *(
            _drain(
                f"drain-{slots}",
                f"jobs that do nothing, {slots} slot{'s' * (slots > 1)}, one unacknowledged job a slot (-ahead: 16)",
                _entries(_slots(slots), *_ALL) + _ahead(slots),
                scale=scale,
            )
            for slots in (1, 2, 4)
        ),
        _drain(
            "threads",
            "jobs that do nothing, 8 threads of one process (raw: one slot)",
            raw + _entries(threads, "palermo", "celery", "dramatiq", suffix="-threads"),
            scale=scale,
        ),
        _drain(
            "async",
            "jobs that do nothing, 100 coroutines of one process (raw: one slot; raw-100: 100 unacknowledged)",
            raw
            + _entries(coroutines, "raw", suffix="-100")
            + _entries(coroutines, "palermo", "taskiq", "faststream", suffix="-async"),
            scale=scale,
        ),
        Workload(
            name="sleep",
            title="jobs of 5 ms, 4 slots: 800 a second at most",
            entries=_entries(_slots(4), *_ALL) + _ahead(4),
            base="raw",
            player=partial(Draining, seconds=0.8 * scale, sleep=0.005),
            metrics=_RATE,
        ),
        _drain(
            "queues",
            "jobs that do nothing in 50 queues, 1 slot (raw: one; raw-50: one unacknowledged job in each of 50)",
            raw
            + _entries(_slots(1), "raw", queues=50, suffix="-50")
            + _entries(_slots(1), *[name for name in _ALL if name != "raw"], queues=50),
            scale=scale,
        ),
    )


def _resting(scale: float) -> tuple[Workload, ...]:
    everyone = _entries(_slots(2), *_ALL)
    return (
        Workload(
            name="latency",
            title="a worker with 2 slots, 50 jobs a second: from the call that enqueues to the start of the job",
            entries=_entries(Setup(slots=2), *_ALL),
            base="raw",
            player=partial(Waiting, jobs=int(75 * scale), every=0.02),
            metrics=_WAITS,
            less=True,
        ),
        Workload(
            name="memory",
            title="a worker with 2 slots, after 20 jobs, idle",
            entries=everyone,
            base="raw",
            player=partial(Idling, seconds=1.0 * scale),
            metrics=_MEMORY,
            less=True,
            most_rounds=2,
        ),
        Workload(
            name="startup",
            title="a worker with 2 slots, a job waiting: until that starts; and its end by TERM (10 s: killed)",
            entries=everyone,
            base="raw",
            player=Starting,
            metrics=_START,
            less=True,
            most_rounds=3,
        ),
        Workload(
            name="import",
            title="importing what a program needs to enqueue, above a bare Python (-declaring: what declares jobs)",
            entries=(*_entries(Setup(), *SYSTEMS), _DECLARING),
            base="raw",
            player=Importing,
            metrics=_IMPORT,
            less=True,
            runs_jobs=False,
        ),
    )


def _on_redis(scale: float) -> tuple[Workload, ...]:
    peers = ("celery", "dramatiq", "huey", "rq")
    return (
        _enqueue(
            "redis-enqueue",
            "enqueue-one, into redis, each command on the disk",
            _entries(Setup(), "palermo", *peers, store="redis") + _entries(Setup(pool="async"), "arq", store="redis"),
            jobs=int(150 * scale),
            base="palermo",
        ),
        _enqueue(
            "redis-enqueue-many",
            "enqueue-many, into redis, each command on the disk",
            _entries(Setup(), "palermo", "rq", store="redis") + _entries(Setup(pool="async"), "arq", store="redis"),
            jobs=int(1_000 * scale),
            many=True,
            base="palermo",
        ),
        *(
            _drain(
                f"redis-drain-{slots}",
                f"drain-{slots}, from redis, each command on the disk",
                _entries(_slots(slots), "palermo", *peers, store="redis")
                + _entries(_slots(slots).changed(pool="async"), "arq", store="redis"),
                scale=scale,
                base="palermo",
            )
            for slots in (1, 2)
        ),
    )


def _other_stores(scale: float) -> tuple[Workload, ...]:
    quorum = Setup(quorum=True)
    files = ("palermo", "huey")
    return (
        _enqueue(
            "quorum-enqueue",
            "enqueue-one, into quorum queues of one node",
            _entries(quorum, *_QUORUM),
            jobs=int(150 * scale),
        ),
        _drain(
            "quorum-drain",
            "drain-1, from quorum queues of one node",
            _entries(quorum.changed(confirm=False), *_QUORUM),
            scale=scale,
        ),
        _enqueue(
            "embedded-enqueue",
            "enqueue-one, into an SQLite file, each commit on the disk",
            _entries(Setup(), *files, store="sqlite"),
            jobs=int(150 * scale),
            base="huey",
        ),
        _drain(
            "embedded-drain",
            "drain-1, from an SQLite file, each commit on the disk",
            _entries(_slots(1), *files, store="sqlite"),
            scale=scale,
            base="huey",
        ),
    )
