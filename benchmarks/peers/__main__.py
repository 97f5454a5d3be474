"""Palermo against its peers and the bare client: `python -m benchmarks.peers`.

Each workload is played in rounds in which every system has its turn, and printed as a table of its own, with ratios
to the bare client of the same round.
"""

import argparse
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.peers.installed import described, here, versions
from benchmarks.peers.processes import ROOT
from benchmarks.peers.scores import Score, ratios
from benchmarks.peers.stores import Stores, stores
from benchmarks.peers.systems import SYSTEMS
from benchmarks.peers.systems.system import System
from benchmarks.peers.table import summary, table
from benchmarks.peers.tour import Tour
from benchmarks.peers.workloads import Entry, Workload, workloads


def main() -> None:
    given = _arguments()
    chosen = select(workloads(given.scale), given.workloads.split(",") if given.workloads else [])
    wanted = given.systems.split(",") if given.systems else list(SYSTEMS)
    if strangers := [name for name in wanted if name not in SYSTEMS]:
        raise SystemExit(f"no system {strangers[0]!r}; there are {', '.join(SYSTEMS)}.")
    plan = [(workload, taking_part(workload, wanted)) for workload in chosen]
    names = {entry.system.name for _, entries in plan for entry in entries}
    # Workers that are held would stay so if this just ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="peers-") as made:
        folder = Path(made)
        with stores(
            given.url, folder, redis=any(entry.store == "redis" for _, entries in plan for entry in entries)
        ) as found:
            missing = _introduce([SYSTEMS[name] for name in SYSTEMS if name in names], found, given.venv)
            medians = {}
            for workload, entries in plan:
                there = [entry for entry in entries if entry.system.name not in missing]
                tour = Tour(workload, there, found, folder=folder, venv=given.venv)
                _play(tour, workload, there, rounds=min(given.rounds, workload.most_rounds))
                name = f"{workload.name} (less is better)" if workload.less else workload.name
                medians[name] = compared(workload, there, tour.scores)
    if len(medians) > 1:
        print("\n### all: to raw, embedded: to huey, redis: to palermo\n")
        print("\n".join(summary(medians)))


def select(known: Sequence[Workload], wanted: Sequence[str]) -> list[Workload]:
    """The workloads of these names, or of names that begin with them and a dash; all if none is wanted."""
    for name in wanted:
        if not any(_fits(workload, name) for workload in known):
            raise SystemExit(f"no workload {name!r}; there are {', '.join(workload.name for workload in known)}.")
    return [workload for workload in known if not wanted or any(_fits(workload, name) for name in wanted)]


def taking_part(workload: Workload, wanted: Sequence[str]) -> list[Entry]:
    """Those of the wanted systems, and the one that they are compared to."""
    return [entry for entry in workload.entries if entry.system.name in wanted or entry.label == workload.base]


def compared(workload: Workload, entries: Sequence[Entry], scores: Mapping[str, Sequence[Score]]) -> dict[str, float]:
    """The median ratio of each system, by its name: of its first entry where it has several."""
    found: dict[str, float] = {}
    for entry in entries:
        each = ratios(scores.get(entry.label, ()), scores.get(workload.base, ()), workload.metrics[0].key)
        if each:
            found.setdefault(entry.system.name, statistics.median(each))
    return found


def _fits(workload: Workload, name: str) -> bool:
    return workload.name == name or workload.name.startswith(f"{name}-")


def _introduce(systems: Iterable[System], found: Stores, venv: Path) -> set[str]:
    """Print what takes part; the names of those that cannot."""
    print(here(found.version))
    missing = set()
    for system in systems:
        there = versions(system.python(venv), system.distributions)
        if system.distributions[0] not in there:
            print(f"{system.name} is left out: not installed in {venv}; `make bench NAME=peers` does that")
            missing.add(system.name)
        elif system.stores == ("redis",) and not found.redis:
            print(f"{system.name} is left out: no redis-server is installed here")
            missing.add(system.name)
        else:
            print(described(system, there) + (f" ({system.weaker})" if system.weaker else ""))
    sys.stdout.flush()
    return missing


def _play(tour: Tour, workload: Workload, entries: Sequence[Entry], *, rounds: int) -> None:
    before = os.getloadavg()[0]
    tour.play(rounds)
    print(f"\n### {workload.name}: {workload.title}")
    print(f"{rounds} rounds; load {before:.1f} to {os.getloadavg()[0]:.1f}\n")
    notes = {entry.label: entry.isolation for entry in entries} if workload.runs_jobs else {}
    print("\n".join(table(tour.scores, workload.metrics, base=workload.base, less=workload.less, notes=notes)))
    for label, reason in tour.left_out.items():
        print(f"{label} is left out of {workload.name}: {reason}")
    sys.stdout.flush()


def _arguments() -> argparse.Namespace:
    names = ", ".join(workload.name for workload in workloads())
    systems = ", ".join(SYSTEMS)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--workloads", help=f"with commas between, all unless given; `drain` is all drain-…: {names}")
    parser.add_argument("--systems", help=f"with commas between, all that are here unless given: {systems}")
    parser.add_argument("--rounds", type=int, default=5, help="%(default)s unless given")
    parser.add_argument("--scale", type=float, default=1.0, help="how much longer turns last than they would")
    parser.add_argument("--url", help="a RabbitMQ to measure on; without it a private node is started")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv-bench", help="where peers are installed")
    given = parser.parse_args()
    given.venv = given.venv.absolute()
    return given


if __name__ == "__main__":
    main()
