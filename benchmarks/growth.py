"""The growth of costs with what is there: `python -m benchmarks.growth NAME`.

Each is measured at three sizes. It prints the cost, the cost per unit, and by how much the cost grows from one size to
the next: 0 is flat, 1 grows like the size, 2 like its square.

    keys      unique keys: list them all; the slowest enqueue with a key meanwhile; an idle leader's processor time
    start     queues: a worker on `*` from its start to its first job
    doctor    queues: `palermo doctor`
    overview  queues: the web's first page, and its rows by the API, with two workers on `*`
    one       failed jobs of a classic queue: one is shown, requeued, discarded; the newest page; all groups
    history   records of the journal: the newest page; what is told of the newest job and the oldest; a job's status
"""

import argparse
import itertools
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

import palermo
from benchmarks import jobs
from benchmarks.contest import machine, versions
from benchmarks.drain import ROOT
from benchmarks.failed_jobs import fill, many_failed
from benchmarks.ground import Ground, ground
from benchmarks.processes import cpu_seconds, family
from benchmarks.watched import served
from palermo.client.client import default_client
from palermo.contract.broker import Broker
from palermo.core.journal_records import RecordKind, encode

#: What is measured at one size: figures by name. Names end with their unit.
Figures = Mapping[str, float]

#: Seconds in which an idle leader's processor time is counted.
_IDLE = 6.0

_numbers = itertools.count()


def keyed(queue: str, count: int) -> None:
    """Enqueue so many jobs, each with a key of its own."""
    options = {"queue": queue, "unique": "until_done", "unique_key": lambda order: f"key {next(_numbers):06}"}
    jobs.noop.options(**options).enqueue_many((jobs.ORDER,) for _ in range(count))  # type: ignore[arg-type]


@contextmanager
def worker(place: Ground, queues: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of one slot, as a process of its own."""
    command = [sys.executable, "-m", "palermo", "worker", jobs.__name__, "-q", queues, "--log-level", "warning"]
    process = subprocess.Popen(command, cwd=ROOT, env=place.environment())
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def until(done: Callable[[], bool]) -> float:
    """Seconds until this is so."""
    began = time.perf_counter()
    while not done():
        time.sleep(0.005)
    return time.perf_counter() - began


def idle(pid: int) -> float:
    """Percent of a core that a process and its children take now."""
    before, began = cpu_seconds(family(pid)), time.perf_counter()
    time.sleep(_IDLE)
    return 100 * (cpu_seconds(family(pid)) - before) / (time.perf_counter() - began)


def keys(place: Ground, size: int) -> Figures:
    """List all keys by the command, in a process of its own, and enqueue with keys meanwhile."""
    with worker(place, "keeper") as leader:
        keyed("held", 1)
        until(lambda: bool(place.waiting("held")))
        for left in range(size - 1, 0, -1_000):
            keyed("held", min(left, 1_000))
        time.sleep(3.0)
        idled = idle(leader.pid)
        command = [sys.executable, "-m", "palermo", "unique", "list", "--json"]
        began = time.perf_counter()
        listing = subprocess.Popen(command, cwd=ROOT, env=place.environment(), stdout=subprocess.DEVNULL)
        slowest, failed = 0.0, 0
        while listing.poll() is None:
            asked = time.perf_counter()
            try:
                keyed("beside", 1)
            except palermo.PalermoError:
                failed += 1
            slowest = max(slowest, time.perf_counter() - asked)
            time.sleep(0.02)
        took = time.perf_counter() - began
        return {
            "list all s": took,
            "list: exit code": float(listing.returncode),
            "slowest enqueue ms": slowest * 1e3,
            "failed enqueues": float(failed),
            "idle leader %": idled,
        }


def queues(place: Ground, size: int) -> None:
    """Make so many empty queues, as enqueues make them."""
    for number in range(size):
        jobs.noop.options(queue=f"many-{number:05}").enqueue(jobs.ORDER)
        place.purge(f"many-{number:05}")


def start(place: Ground, size: int) -> Figures:
    """Start a worker on all queues; the last one has a job."""
    queues(place, size)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ran"
        jobs.mark.options(queue=f"many-{size - 1:05}").enqueue(str(path))
        began = time.perf_counter()
        with worker(place, "*"):
            until(path.exists)
            took = time.perf_counter() - began
    return {"first job s": took}


def doctor(place: Ground, size: int) -> Figures:
    """Run `palermo doctor`."""
    queues(place, size)
    command = [sys.executable, "-m", "palermo", "doctor", "--json"]
    began = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=place.environment(), stdout=subprocess.DEVNULL, check=False)
    return {"doctor s": time.perf_counter() - began}


def overview(place: Ground, size: int) -> Figures:
    """Read the first page, and its rows by the API, with two workers on all queues."""
    queues(place, size)
    with worker(place, "*"), worker(place, "*"), served(place) as (url, _):
        took, live = list[float](), list[float]()
        with httpx.Client(base_url=url, timeout=120) as http:
            time.sleep(10.0)
            for _ in range(3):
                time.sleep(3.0)
                began = time.perf_counter()
                page = http.get("/").raise_for_status()
                took.append(time.perf_counter() - began)
                began = time.perf_counter()
                rows = http.get("/api/queues").raise_for_status()
                live.append(time.perf_counter() - began)
    return {
        "page s": min(took),
        "page kB": len(page.content) / 1e3,
        "api s": min(live),
        "api kB": len(rows.content) / 1e3,
    }


def one(place: Ground, size: int) -> Figures:
    """Look at failed jobs and take some out, each by its id."""
    fill(place, size)
    oldest, *_, second, newest = (job.id for job in many_failed(size))
    inspector = palermo.inspector()
    return {
        "show oldest s": seconds(lambda: inspector.failed_job(oldest)),
        "show newest s": seconds(lambda: inspector.failed_job(newest)),
        "newest page s": seconds(lambda: inspector.failed(newest=True, limit=50)),
        "status s": seconds(lambda: default_client().job_by_id(newest).status()),
        "requeue s": seconds(lambda: inspector.requeue(newest)),
        "discard s": seconds(lambda: inspector.discard(second)),
        "groups s": seconds(inspector.groups),
    }


def seconds(work: Callable[[], object]) -> float:
    """How long this takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def history(place: Ground, size: int) -> Figures:
    """Look into a journal of so many records about jobs that are done, 500 in a batch, as a busy worker writes them."""
    ids = [f"{number:032x}" for number in range(size)]

    async def write(broker: Broker) -> None:
        for number, batch in enumerate(ids[first : first + 500] for first in range(0, size, 500)):
            at = time.time() - (size - number * 500) / 500
            done = {"kind": RecordKind.SUCCEEDED, "job": "bench", "queue": "jobs", "attempt": 1, "slot": 1}
            records = [{**done, "at": at, "id": id, "wait": 0.001, "took": 0.002} for id in batch]
            await broker.journal.append(encode("host:1:bench", records, source="bench", number=number + 1))

    client = default_client()
    client.run(write)
    # A status decodes the last minute of the journal; in this one all records are from a few seconds.
    time.sleep(75.0)
    inspector = palermo.inspector()
    return {
        "newest page s": seconds(lambda: inspector.history(limit=100)),
        "newest job s": seconds(lambda: inspector.life(ids[-1])),
        "oldest job s": seconds(lambda: inspector.life(ids[0])),
        "status s": seconds(lambda: client.job_by_id(ids[0]).status()),
    }


#: Of each: the sizes, and what is measured.
SCENARIOS: Mapping[str, tuple[tuple[int, int, int], Callable[[Ground, int], Figures]]] = {
    "keys": ((1_000, 10_000, 50_000), keys),
    "start": ((100, 1_000, 3_000), start),
    "doctor": ((30, 300, 1_000), doctor),
    "overview": ((100, 1_000, 3_000), overview),
    "one": ((1_000, 10_000, 50_000), one),
    "history": ((10_000, 100_000, 1_000_000), history),
}


def report(sizes: tuple[int, ...], found: list[Figures]) -> None:
    """A line for each figure and size."""
    print(f"{'what':>22} {'size':>8} {'cost':>12} {'per 1,000':>12} {'growth':>7}")
    for name in found[0]:
        before: tuple[int, float] | None = None
        for size, figures in zip(sizes, found, strict=True):
            cost = figures[name]
            growth = ""
            if before is not None and before[1] > 0 and cost > 0:
                growth = f"{math.log(cost / before[1]) / math.log(size / before[0]):.2f}"
            print(f"{name:>22} {size:>8,} {cost:>12,.3f} {1_000 * cost / size:>12,.4f} {growth:>7}")
            before = size, cost


def main() -> None:
    parser = argparse.ArgumentParser(description="How costs grow with what is there.")
    parser.add_argument("what", choices=sorted(SCENARIOS))
    parser.add_argument("--url", help="a broker to measure on; without it a private node is started")
    parser.add_argument("--sizes", help="three numbers, as 100,1000,3000; those of the table unless given")
    given = parser.parse_args()
    sizes, measure = SCENARIOS[given.what]
    if given.sizes:
        first, second, third = (int(size) for size in given.sizes.split(","))
        sizes = first, second, third
    found = []
    for size in sizes:
        # Each on a place of its own: what one size leaves must not count for the next.
        with ground(given.url) as place:
            place.connect()
            found.append(measure(place, size))
            broker = place.version
            print(f"{size:,}: {found[-1]}", flush=True)
    print(f"growth: {given.what}; {versions(broker)}; {machine()}")
    report(sizes, found)


if __name__ == "__main__":
    main()
