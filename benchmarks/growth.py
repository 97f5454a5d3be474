"""The growth of costs with the amount of work: `python -m benchmarks.growth NAME`.

Each is measured at three sizes. Printed are the cost, the cost per thousand, and by which power of the size the cost
grows from one size to the next: 0 is flat, 1 is proportional, 2 is quadratic.

    keys       unique keys: a list of all; enqueues with a key during it and without it; an idle leader's processor time
               and memory
    start      queues: a worker on `*`, from its start to its first job
    wake       queues: single jobs for an idle worker on `*`: their latency, and the broker's processor time
    tenants    tenants: the first job of a new tenant, with a worker and without; jobs dispatched per second; memory of
               RabbitMQ
    doctor     queues: `palermo doctor`; RabbitMQ's processor time for a list of all
    overview   queues: the first web page and its rows from the API, with two workers on `*`
    one        failed jobs: one is shown, requeued, discarded; the newest page; all groups
    history    records of the journal: the newest page; the timelines of the newest and the oldest job; a job's status
    scheduled  jobs scheduled for one minute of tomorrow: list and cancel; how late other jobs start in the meantime
    due        jobs scheduled for one instant: when half and all of them are queued
    recurring  recurring jobs due in the same second: how late they are; an idle leader's processor time
"""

import argparse
import asyncio
import itertools
import math
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import pika

import palermo
from benchmarks import bare, jobs
from benchmarks.compare import machine, versions
from benchmarks.ground import ROOT, WORKER, Ground, add_url, ground, leader
from benchmarks.pages import served
from benchmarks.processes import cpu_seconds, family, pss_bytes
from benchmarks.shop import failed_jobs, put_failed
from palermo.brokers.rabbitmq.publishing.job_destinations import TenantQueue, tenant_queue_name
from palermo.client.client import default_client
from palermo.client.prepare_recurring import entry
from palermo.contract.broker import Broker
from palermo.contract.recurring import RecurringJob
from palermo.contract.recurring_entries import RUNTIME, EntryChange
from palermo.contract.scheduled import ScheduledFilter
from palermo.core.journal_records import RecordKind, encode, encode_record
from palermo.core.message import Message

#: The measurements at one size, by names that end with the unit.
Figures = Mapping[str, float]

#: Seconds in which an idle leader's processor time is counted.
_IDLE = 6.0

#: Single jobs of `wake`, and the seconds between the end of one and the next.
_SPACED, _SPACE = 60, 0.3

#: Seconds in which the lateness of other jobs is measured without the scheduled jobs, and during their listing.
_BESIDE = 10.0

#: Lists of all queues.
_LISTED = 10

#: Jobs of tenants; tenants that are new one at a time, and seconds between two of them; seconds until RabbitMQ has
#: stored the messages of many queues, because a declaration, and so an election, takes 2 s before that.
_DISPATCHED, _ALONE, _APART, _STORED = 8_000, 21, 0.05, 4.0

_numbers = itertools.count()


def keyed(queue: str, count: int) -> None:
    """Enqueue this number of jobs, each with a unique key."""
    options = {"queue": queue, "unique": "until_done", "unique_key": lambda order: f"key {next(_numbers):06}"}
    jobs.noop.options(**options).enqueue_many((jobs.ORDER,) for _ in range(count))  # type: ignore[arg-type]


@contextmanager
def worker(place: Ground, queues: str, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker of one slot, unless the options say otherwise, as a process of its own."""
    process = subprocess.Popen([*WORKER, "-q", queues, *options], cwd=ROOT, env=place.environment())
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def until(done: Callable[[], bool]) -> float:
    """Wait until this is true; returns the seconds that passed."""
    began = time.perf_counter()
    while not done():
        time.sleep(0.005)
    return time.perf_counter() - began


def load(pid: int, seconds: float) -> float:
    """Percent of a core that a process and its children take in the next seconds."""
    before, began = cpu_seconds(family(pid)), time.perf_counter()
    time.sleep(seconds)
    return 100 * (cpu_seconds(family(pid)) - before) / (time.perf_counter() - began)


def rest(pid: int) -> None:
    """Wait until a process and its children are idle: they use under 5 % of a core for three seconds."""
    calm = 0
    while calm < 3:
        calm = calm + 1 if load(pid, 1.0) < 5 else 0


def idle(pid: int) -> float:
    """Percent of a core that a process and its children take while they are idle."""
    rest(pid)
    return load(pid, _IDLE)


def keys(place: Ground, size: int) -> Figures:
    """List all keys with the command, in a process of its own, and enqueue with keys in the meantime."""
    with leader(place) as keeper:
        rest(keeper.pid)
        keyed("beside", 1)
        for left in range(size, 0, -1_000):
            keyed("held", min(left, 1_000))
        idled, memory = idle(keeper.pid), pss_bytes([keeper.pid]) / 1e6
        command = [sys.executable, "-m", "palermo", "unique", "list", "--json"]
        began = time.perf_counter()
        listing = subprocess.Popen(command, cwd=ROOT, env=place.environment(), stdout=subprocess.DEVNULL)
        asked, failed = list[float](), 0
        while listing.poll() is None:
            try:
                asked.append(seconds(lambda: keyed("beside", 1)))
            except palermo.PalermoError:
                failed += 1
            time.sleep(0.02)
        took = time.perf_counter() - began
        return {
            "list all s": took,
            "list: exit code": float(listing.returncode),
            "enqueue p50 ms": statistics.median(asked) * 1e3,
            "slowest enqueue ms": max(asked) * 1e3,
            "slowest alone ms": max(seconds(lambda: keyed("beside", 1)) for _ in asked) * 1e3,
            "failed enqueues": float(failed),
            "idle leader %": idled,
            "leader MB": memory,
        }


def queues(place: Ground, size: int) -> None:
    """Create this number of empty queues, in the same way as an enqueue."""
    for number in range(size):
        jobs.noop.options(queue=f"many-{number:05}").enqueue(jobs.ORDER)
        place.purge(f"many-{number:05}")


def start(place: Ground, size: int) -> Figures:
    """Start a worker on all queues, of which the last has a job."""
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
    """Enqueue single jobs for an idle worker on all queues, each into a different queue."""
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
    """Run jobs of this number of tenants on a worker with four slots, then one job each for new tenants."""

    def enqueue(numbers: Iterable[int]) -> None:
        shared = jobs.noop.options(queue="dispatched", tenant=lambda order: f"one of many {order['id'] % size}")
        shared.enqueue_many(({**jobs.ORDER, "id": number},) for number in numbers)

    def alone(name: str) -> float:
        took = list[float]()
        for number in range(_ALONE):
            began = time.perf_counter()
            jobs.noop.options(queue="dispatched", tenant=f"{name} {number}").enqueue(jobs.ORDER)
            took.append(time.perf_counter() - began)
            time.sleep(_APART)
        return statistics.median(took)

    before = broker_bytes(place)
    began = time.perf_counter()
    enqueue(range(size))
    took = time.perf_counter() - began
    time.sleep(_STORED)
    memory = broker_bytes(place) - before
    unserved = alone("unserved")
    with tempfile.TemporaryDirectory() as folder:
        # The first has no tenant, and the last is dispatched after all others.
        paths = [Path(folder) / name for name in ("first", "last")]
        jobs.mark.options(queue="dispatched").enqueue(str(paths[0]))
        enqueue(range(size, _DISPATCHED))
        jobs.mark.options(queue="dispatched", tenant="one of many 0").enqueue(str(paths[1]))
        time.sleep(_STORED)
        with worker(place, "dispatched", "-c", "4"):
            until(lambda: all(path.exists() and path.read_text() for path in paths))
            served = alone("served")
        first, last = (float(path.read_text()) for path in paths)
    again = _DISPATCHED // size * size
    enqueue(range(again))
    queue = place.amqp_name("dispatched")
    names = [TenantQueue("dispatched", f"one of many {number}") for number in range(size)]
    dispatcher = bare.Dispatcher(
        place.url, [tenant_queue_name(place.exchange, name) for name in names], queue, ahead=12
    )
    with subprocess.Popen([sys.executable, bare.__file__, place.url, queue, "4"]) as consumer:
        bare_pika = dispatcher.dispatch(again)
        consumer.kill()
    dispatcher.close()
    return {
        "first job ms": 1e3 * served,
        "without a worker ms": 1e3 * unserved,
        "of many ms": 1e3 * took / size,
        "broker MB": memory / 1e6,
        "dispatched jobs a second": _DISPATCHED / (last - first),
        "by bare pika": again / bare_pika,
    }


def broker_bytes(place: Ground) -> int:
    """The memory of the private node; zero on a broker from the command line."""
    return 0 if place.node is None else pss_bytes(family(place.node.pid))


def doctor(place: Ground, size: int) -> Figures:
    """Run `palermo doctor`, then list all queues ten times."""
    queues(place, size)
    command = [sys.executable, "-m", "palermo", "doctor", "--json"]
    began = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=place.environment(), stdout=subprocess.DEVNULL, check=False)
    took, inspector = time.perf_counter() - began, palermo.inspector()
    inspector.queues.list()
    spent = place.broker_seconds()
    for _ in range(_LISTED):
        inspector.queues.list()
    spent = place.broker_seconds() - spent
    return {"doctor s": took, "broker µs a listed queue": 1e6 * spent / _LISTED / size}


def overview(place: Ground, size: int) -> Figures:
    """Read the first page, and its rows from the API, with two workers on all queues."""
    queues(place, size)
    with worker(place, "*"), worker(place, "*"), served(place) as (url, _):
        took, live = list[float](), list[float]()
        with httpx.Client(base_url=url, timeout=120) as http:
            time.sleep(10.0)
            for _ in range(10):
                time.sleep(2.7)
                began = time.perf_counter()
                page = http.get("/").raise_for_status()
                took.append(time.perf_counter() - began)
                began = time.perf_counter()
                rows = http.get("/api/queues").raise_for_status()
                live.append(time.perf_counter() - began)
    return {
        "page s": statistics.median(took),
        "slowest page s": max(took),
        "page kB": len(page.content) / 1e3,
        "api s": statistics.median(live),
        "api kB": len(rows.content) / 1e3,
    }


def one(place: Ground, size: int) -> Figures:
    """Show, requeue and discard failed jobs by their ids."""
    put_failed(place, size)
    oldest, *_, second, newest = (job.id for job in failed_jobs(size))
    inspector = palermo.inspector()
    return {
        "show oldest s": seconds(lambda: inspector.failed.show(oldest)),
        "show newest s": seconds(lambda: inspector.failed.show(newest)),
        "newest page s": seconds(lambda: inspector.failed.list(newest=True, limit=50)),
        "status s": seconds(lambda: default_client().job_by_id(newest).status()),
        "requeue s": seconds(lambda: inspector.failed.requeue(newest)),
        "discard s": seconds(lambda: inspector.failed.discard(second)),
        "groups s": seconds(inspector.failed.groups),
    }


def seconds(work: Callable[[], object]) -> float:
    """The seconds that this takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def history(place: Ground, size: int) -> Figures:
    """Read a journal with this number of records of finished jobs, in batches of 500, as a busy worker writes them."""
    ids = [f"{number:032x}" for number in range(size)]

    async def write(broker: Broker) -> None:
        for number, batch in enumerate(ids[first : first + 500] for first in range(0, size, 500)):
            at = time.time() - (size - number * 500) / 500
            done = {"kind": RecordKind.SUCCEEDED, "job": "bench", "queue": "jobs", "attempt": 1, "slot": 1}
            records = [encode_record({**done, "at": at, "id": id, "wait": 0.001, "took": 0.002}) for id in batch]
            await broker.journal.append(encode("host:1:bench", records, source="bench", number=number + 1))

    client = default_client()
    client.run(write)
    # A status decodes the last minute of the journal; in this one all records are from a few seconds.
    time.sleep(75.0)
    inspector = palermo.inspector()
    return {
        "newest page s": seconds(lambda: inspector.history.list(limit=100)),
        "newest job s": seconds(lambda: inspector.history.timeline(ids[-1])),
        "oldest job s": seconds(lambda: inspector.history.timeline(ids[0])),
        "status s": seconds(lambda: client.job_by_id(ids[0]).status()),
    }


def due(place: Ground, size: int) -> Figures:
    """Schedule this number of jobs for one instant, and see when half and all of them are queued."""
    place.make("late")
    with leader(place) as keeper:
        rest(keeper.pid)
        at = time.time() + 5.0 + size / 2_000
        sent = (Message(id=f"due-{n}", queue="late", job="due", body=b"[]", run_at=at) for n in range(size))
        default_client().run(lambda broker: broker.publish_many(sent))
        if time.time() > at:
            raise SystemExit("this machine is too slow: the jobs were due before all of them were scheduled.")
        time.sleep(at - time.time())
        found = list[float]()
        for reached in (size / 2, size):
            while place.waiting("late") < reached:
                time.sleep(0.005)  # each count costs this process and the broker a millisecond that the jobs need
            found.append(time.time() - at)
    return {"half s late": found[0], "last s late": found[1], "jobs a second": size / found[1]}


def recurring(place: Ground, size: int) -> Figures:
    """See when recurring jobs that are due together are queued: at first, later, and after the leader was killed."""
    client = palermo.connect(place.url, exchange=place.exchange)
    place.make("ticks")

    def put(every: float, counted: str) -> None:
        times = [RecurringJob(name=f"{counted} {n}", job="ticks", every=every, queue="ticks") for n in range(size)]
        changes = [EntryChange.put(entry(client, one, origin=RUNTIME)) for one in times]

        async def store(broker: Broker) -> None:
            for start in range(0, size, 100):
                await asyncio.gather(*map(broker.change_recurring, changes[start : start + 100]))

        client.run(store)

    half, last = list[float](), list[float]()

    def see_tick() -> None:
        place.purge("ticks")
        tick = 20.0 * (1 + time.time() // 20.0)
        time.sleep(tick - time.time() - 0.1)
        for reached, found in ((size / 2, half), (size, last)):
            while place.waiting("ticks") < reached:
                time.sleep(0.005)  # each count costs this process and the broker a millisecond that the jobs need
            found.append(1e3 * (time.time() - tick))
        time.sleep(3.0)

    with leader(place) as keeper:
        put(366 * 86_400.0, "far")
        idled = idle(keeper.pid)
        put(20.0, "near")
        for _ in range(4):
            see_tick()
        with worker(place, "keeper"):
            until(lambda: len(palermo.inspector().workers.list()) == 2)
            keeper.kill()
            see_tick()
    return {
        "half ms late": statistics.median(half[1:-1]),
        "last ms late": statistics.median(last[1:-1]),
        "last of the first tick ms late": last[0],
        "last after a kill ms late": last[-1],
        "idle leader %": idled,
    }


def scheduled(place: Ground, size: int) -> Figures:
    """List the first page, search for one id and cancel one job, while other jobs become due.

    Then do the same with a new leader, after a kill. The lateness of the other jobs is also measured without the
    scheduled jobs, and with them but without a listing.
    """
    client = palermo.connect(place.url, exchange=place.exchange)
    place.make("beside")
    tomorrow = (time.time() + 86_400.0) // 300 * 300
    found: dict[str, float] = {}
    phases: list[tuple[str, float]] = []

    def timed(name: str, work: Callable[[], object]) -> None:
        began = time.perf_counter()
        work()
        found[name] = time.perf_counter() - began

    inspector = palermo.inspector()
    nobody = ScheduledFilter(ids=frozenset(["nobody"]))

    def look(when: str, number: int) -> None:
        timed(f"{when}: first page s", lambda: inspector.scheduled.list(limit=100))
        timed(f"{when}: again s", lambda: inspector.scheduled.list(limit=100))
        timed(f"{when}: page half way s", lambda: inspector.scheduled.list(offset=size // 2, limit=100))
        timed(f"{when}: no such id s", lambda: client.run(lambda broker: broker.scheduled(nobody)))
        timed(f"{when}: cancel one s", lambda: inspector.scheduled.cancel(f"far-{number}"))

    def phase(name: str) -> None:
        phases.append((name, time.time()))

    with leader(place) as keeper:
        with arrivals(place, "beside") as late:
            phase("no crowd")
            time.sleep(_BESIDE)
            phase("crowd comes")
            body = b"[]" + b" " * 998
            sent = (
                Message(id=f"far-{n}", queue="crowd", job="crowd", body=body, run_at=tomorrow + n % 60)
                for n in range(size)
            )
            client.run(lambda broker: broker.publish_many(sent))
            phase("look at once")
            timed("at once: first page s", lambda: inspector.scheduled.list(limit=100))
            phase("no look")
            time.sleep(_BESIDE)
            phase("looks")
            look("then", size // 3)
            while time.time() < phases[-1][1] + _BESIDE:
                inspector.scheduled.list(limit=100)
            phase("")
        for (name, begins), (_, ended) in itertools.pairwise(phases):
            times = sorted(after for at, after in late if begins <= at < ended) or [math.nan]
            found[f"{name}: p50 late ms"] = 1e3 * statistics.median(times)
            found[f"{name}: p99 late ms"] = 1e3 * times[len(times) * 99 // 100]
            found[f"{name}: worst late ms"] = 1e3 * times[-1]
        keeper.kill()
    with leader(place):
        look("new leader", size // 4)
    return found


@contextmanager
def arrivals(place: Ground, queue: str) -> Iterator[list[tuple[float, float]]]:
    """Ten jobs a second in this queue. Yields the time at which each was due (its id), and the seconds it was late."""
    late, ended = list[tuple[float, float]](), threading.Event()

    def receive() -> None:
        with pika.BlockingConnection(pika.URLParameters(place.url)) as connection:
            for _, properties, _ in connection.channel().consume(
                place.amqp_name(queue), auto_ack=True, inactivity_timeout=0.5
            ):
                if properties is not None:
                    late.append((at := float(properties.message_id), time.time() - at))
                elif ended.is_set():
                    return

    def send() -> None:
        while not ended.wait(0.1):
            jobs.noop.options(queue=queue, id=f"{(at := time.time() + 1.0)}").enqueue_at(at, jobs.ORDER)

    threads = [threading.Thread(target=receive), threading.Thread(target=send)]
    for thread in threads:
        thread.start()
    try:
        yield late
    finally:
        ended.set()
        for thread in reversed(threads):
            thread.join()


#: The sizes of each, and the function that measures it.
SCENARIOS: Mapping[str, tuple[tuple[int, ...], Callable[[Ground, int], Figures]]] = {
    "keys": ((1_000, 10_000, 50_000), keys),
    "start": ((100, 1_000, 3_000), start),
    "wake": ((10, 100, 1_000), wake),
    "tenants": ((10, 100, 1_000), tenants),
    "doctor": ((30, 300, 1_000), doctor),
    "overview": ((100, 1_000, 3_000), overview),
    "one": ((1_000, 10_000, 50_000), one),
    "history": ((10_000, 100_000, 1_000_000), history),
    "scheduled": ((10_000, 100_000, 200_000), scheduled),
    "due": ((1_000, 10_000, 100_000), due),
    "recurring": ((100, 1_000, 3_000), recurring),
}


def report(sizes: tuple[int, ...], found: list[Figures]) -> None:
    """Print a line for each figure and size."""
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
    parser = argparse.ArgumentParser(
        description=__doc__, usage="%(prog)s NAME [options]", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=SCENARIOS, metavar="NAME")
    add_url(parser)
    parser.add_argument("--sizes", help="such as 100,1000,3000; default: three sizes that fit")
    given = parser.parse_args()
    sizes, measure = SCENARIOS[given.what]
    if given.sizes:
        sizes = tuple(int(size) for size in given.sizes.split(","))
    found = []
    for size in sizes:
        # Each on a broker of its own, so that one size leaves nothing for the next.
        with ground(given.url) as place:
            place.connect()
            found.append(measure(place, size))
            broker = place.version
            print(f"{size:,}: {found[-1]}", flush=True)
    print(f"growth: {given.what}; {versions(broker)}; {machine()}")
    report(sizes, found)


if __name__ == "__main__":
    main()
