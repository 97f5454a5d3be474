"""The growth of costs with what is there: `python -m benchmarks.growth NAME`, one of those below.

Each is measured at three sizes. It prints the cost, the cost per unit, and by how much the cost grows from one size to
the next: 0 is flat, 1 grows like the size, 2 like its square.

    keys      unique keys: list them all; the slowest enqueue with a key meanwhile; an idle leader's processor time
    start     queues: a worker on `*` from its start to its first job
    wake      queues: a spaced job for an idle worker on `*`: how late it starts, the broker's processor time
    tenants   tenants: the first job of each, and the jobs a second that a worker of four slots runs
    doctor    queues: `palermo doctor`
    overview  queues: the web's first page, and its rows by the API, with two workers on `*`
    one       failed jobs: requeue the newest one, and discard the next, of a classic queue
"""

import argparse
import itertools
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
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

#: What is measured at one size: figures by name. Names end with their unit.
Figures = Mapping[str, float]

#: Seconds in which an idle leader's processor time is counted.
_IDLE = 6.0

#: How many spaced jobs are enqueued, and the seconds between the end of one and the next.
_SPACED, _SPACE = 60, 0.3

#: How many jobs of tenants are dealt, and how many tenants are new by themselves.
_DEALT, _ALONE = 4_000, 21

_numbers = itertools.count()


def keyed(queue: str, count: int) -> None:
    """Enqueue so many jobs, each with a key of its own."""
    options = {"queue": queue, "unique": "until_done", "unique_key": lambda order: f"key {next(_numbers):06}"}
    jobs.noop.options(**options).enqueue_many((jobs.ORDER,) for _ in range(count))  # type: ignore[arg-type]


@contextmanager
def worker(place: Ground, queues: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of one slot, unless the options say otherwise, as a process of its own."""
    command = [sys.executable, "-m", "palermo", "worker", jobs.__name__, "-q", queues, "--log-level", "warning"]
    command += options
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


def wake(place: Ground, size: int) -> Figures:
    """Enqueue jobs for an idle worker on all queues, each into another queue."""
    queues(place, size)
    latencies = list[float]()
    with tempfile.TemporaryDirectory() as folder, worker(place, "*"):

        def spaced(number: int) -> float:
            path = Path(folder) / f"ran-{number}"
            job = jobs.mark.options(queue=f"many-{number * 37 % size:05}")
            began = time.monotonic()
            job.enqueue(str(path))
            until(lambda: path.exists() and bool(path.read_text()))
            time.sleep(_SPACE)
            return float(path.read_text()) - began

        for number in range(5):
            spaced(number)
        idled = place.broker_seconds()
        time.sleep(_IDLE)
        idled, busy = (place.broker_seconds() - idled) / _IDLE, place.broker_seconds()
        began = time.monotonic()
        for number in range(5, 5 + _SPACED):
            latencies.append(spaced(number))
        busy = place.broker_seconds() - busy - idled * (time.monotonic() - began)
    latencies.sort()
    return {
        "start p50 ms": latencies[_SPACED // 2] * 1e3,
        "start p95 ms": latencies[_SPACED * 95 // 100] * 1e3,
        "broker ms a job": 1e3 * busy / _SPACED,
    }


def tenants(place: Ground, size: int) -> Figures:
    """Enqueue jobs of so many tenants, and then start a worker."""

    def enqueue(numbers: Iterable[int], name: str) -> None:
        dealt = jobs.noop.options(queue="dealt", tenant=lambda order: f"{name} {order['id'] % size}")
        dealt.enqueue_many(({**jobs.ORDER, "id": number},) for number in numbers)

    alone = list[float]()
    for number in range(_ALONE):
        began = time.perf_counter()
        enqueue([0], f"alone {number}")
        alone.append(time.perf_counter() - began)
    began = time.perf_counter()
    enqueue(range(size), "one of many")
    took = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        # The first is in the job queue already, and the last is dealt after all others.
        paths = [Path(folder) / name for name in ("first", "last")]
        jobs.mark.options(queue="dealt").enqueue(str(paths[0]))
        enqueue(range(size, _DEALT), "one of many")
        jobs.mark.options(queue="dealt", tenant="one of many 0").enqueue(str(paths[1]))
        with worker(place, "dealt", "-c", "4"):
            until(lambda: all(path.exists() and path.read_text() for path in paths))
        first, last = (float(path.read_text()) for path in paths)
    return {
        "first job alone ms": sorted(alone)[_ALONE // 2] * 1e3,
        "first job of many ms": 1e3 * took / size,
        "us a dealt job": 1e6 * (last - first) / _DEALT,
    }


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
    """Requeue and discard one of the newest failed jobs."""
    fill(place, size)
    *_, second, newest = (job.id for job in many_failed(size))
    inspector = palermo.inspector()
    began = time.perf_counter()
    inspector.requeue(newest)
    requeued = time.perf_counter()
    inspector.discard(second)
    discarded = time.perf_counter()
    return {"requeue s": requeued - began, "discard s": discarded - requeued}


#: Of each: the sizes, and what is measured.
SCENARIOS: Mapping[str, tuple[tuple[int, int, int], Callable[[Ground, int], Figures]]] = {
    "keys": ((1_000, 10_000, 50_000), keys),
    "start": ((100, 1_000, 3_000), start),
    "wake": ((10, 100, 1_000), wake),
    "tenants": ((10, 100, 1_000), tenants),
    "doctor": ((30, 300, 1_000), doctor),
    "overview": ((100, 1_000, 3_000), overview),
    "one": ((1_000, 10_000, 50_000), one),
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
