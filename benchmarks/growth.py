"""The growth of costs with what is there: `python -m benchmarks.growth NAME`.

Each is measured at three sizes. It prints the cost, the cost per unit, and by how much the cost grows from one size to
the next: 0 is flat, 1 grows like the size, 2 like its square.

    keys      unique keys: list them all; enqueues with a key meanwhile, and alone; an idle leader's processor time
    start     queues: a worker on `*` from its start to its first job
    wake      queues: a spaced job for an idle worker on `*`: how late it starts, the broker's processor time
    tenants   tenants: a first job for a worker that waits, and without one, alone and of many; jobs dealt a second
    doctor    queues: `palermo doctor`
    overview  queues: the web's first page, and its rows by the API, with two workers on `*`
    one       failed jobs of a classic queue: one is shown, requeued, discarded; the newest page; all groups
    history   records of the journal: the newest page; what is told of the newest job and the oldest; a job's status
    page      kB of a job's arguments: memory of `palermo web` for the page of a queue with 20 such jobs
    scheduled jobs that are due in one minute of tomorrow: look, and cancel one; at once, later, after a kill;
              how late others come beside it
    registry  queues that were made and deleted: list the queues in a new session, and again
    recurring recurring jobs that are due in the same second: how late they are; an idle leader's processor time
"""

import argparse
import asyncio
import itertools
import json
import math
import os
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
from benchmarks.contest import machine, versions
from benchmarks.drain import ROOT
from benchmarks.failed_jobs import fill, many_failed
from benchmarks.ground import Ground, ground
from benchmarks.processes import cpu_seconds, family, pss_bytes
from benchmarks.watched import served
from palermo.brokers.rabbitmq.publishing.job_destinations import TenantQueue, tenant_queue_name
from palermo.client.client import default_client
from palermo.client.prepare_recurring import entry
from palermo.contract.broker import Broker
from palermo.contract.recurring import RecurringJob
from palermo.contract.recurring_entries import RUNTIME, EntryChange
from palermo.contract.scheduled import ScheduledFilter
from palermo.core.journal_records import RecordKind, encode, encode_record
from palermo.core.message import Message

#: What is measured at one size: figures by name. Names end with their unit.
Figures = Mapping[str, float]

#: Seconds in which an idle leader's processor time is counted.
_IDLE = 6.0

#: How many spaced jobs are enqueued, and the seconds between the end of one and the next.
_SPACED, _SPACE = 60, 0.3

#: Seconds in which jobs come due without a crowd of scheduled jobs, and while its first page is looked at.
_BESIDE = 10.0

#: How many jobs of tenants are dealt, how many tenants are new by themselves, and seconds between two of them; seconds
#: until RabbitMQ has put away what many queues got: meanwhile a declaration, and so an election, takes 2 s.
_DEALT, _ALONE, _APART, _PUT_AWAY = 8_000, 21, 0.05, 4.0
_numbers = itertools.count()


def keyed(queue: str, count: int) -> None:
    """Enqueue this number of jobs, each with a unique key."""
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


def load(pid: int, seconds: float) -> float:
    """Percent of a core that a process and its children take in the next seconds."""
    before, began = cpu_seconds(family(pid)), time.perf_counter()
    time.sleep(seconds)
    return 100 * (cpu_seconds(family(pid)) - before) / (time.perf_counter() - began)


def rest(pid: int) -> None:
    """Wait until a process and its children have ended their work: three seconds, each with under 5 % of a core."""
    calm = 0
    while calm < 3:
        calm = calm + 1 if load(pid, 1.0) < 5 else 0


def idle(pid: int) -> float:
    """Percent of a core that a process and its children take once their work has ended."""
    rest(pid)
    return load(pid, _IDLE)


def keys(place: Ground, size: int) -> Figures:
    """List all keys by the command, in a process of its own, and enqueue with keys meanwhile."""
    with worker(place, "keeper") as leader:
        rest(leader.pid)  # it leads by then: else this process would, and the worker had to read all keys afterwards
        keyed("beside", 1)
        for left in range(size, 0, -1_000):
            keyed("held", min(left, 1_000))
        idled = idle(leader.pid)
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
        }


def queues(place: Ground, size: int) -> None:
    """Create this number of empty queues, in the same way as an enqueue."""
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
    """Run jobs of this number of tenants on a worker with four slots, then one job each for new tenants."""

    def enqueue(numbers: Iterable[int]) -> None:
        dealt = jobs.noop.options(queue="dealt", tenant=lambda order: f"one of many {order['id'] % size}")
        dealt.enqueue_many(({**jobs.ORDER, "id": number},) for number in numbers)

    def alone(name: str) -> float:
        took = list[float]()
        for number in range(_ALONE):
            began = time.perf_counter()
            jobs.noop.options(queue="dealt", tenant=f"{name} {number}").enqueue(jobs.ORDER)
            took.append(time.perf_counter() - began)
            time.sleep(_APART)
        return statistics.median(took)

    began = time.perf_counter()
    enqueue(range(size))
    took = time.perf_counter() - began
    unserved = alone("unserved")
    with tempfile.TemporaryDirectory() as folder:
        # The first is in the job queue already, and the last is dealt after all others.
        paths = [Path(folder) / name for name in ("first", "last")]
        jobs.mark.options(queue="dealt").enqueue(str(paths[0]))
        enqueue(range(size, _DEALT))
        jobs.mark.options(queue="dealt", tenant="one of many 0").enqueue(str(paths[1]))
        time.sleep(_PUT_AWAY)
        with worker(place, "dealt", "-c", "4"):
            until(lambda: all(path.exists() and path.read_text() for path in paths))
            served = alone("served")
        first, last = (float(path.read_text()) for path in paths)
    again = _DEALT // size * size
    enqueue(range(again))
    queue = place.amqp_name("dealt")
    names = [TenantQueue("dealt", f"one of many {number}") for number in range(size)]
    dealer = bare.Dealer(place.url, [tenant_queue_name(place.exchange, name) for name in names], queue, ahead=12)
    with subprocess.Popen([sys.executable, bare.__file__, place.url, queue, "4"]) as consumer:
        bare_pika = dealer.deal(again)
        consumer.kill()
    dealer.close()
    return {
        "first job ms": 1e3 * served,
        "without a worker ms": 1e3 * unserved,
        "of many ms": 1e3 * took / size,
        "dealt jobs a second": _DEALT / (last - first),
        "by bare pika": again / bare_pika,
    }


def doctor(place: Ground, size: int) -> Figures:
    """Run `palermo doctor`."""
    queues(place, size)
    command = [sys.executable, "-m", "palermo", "doctor", "--json"]
    began = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=place.environment(), stdout=subprocess.DEVNULL, check=False)
    return {"doctor s": time.perf_counter() - began}


def overview(place: Ground, size: int) -> Figures:
    """Read the first page, and its rows by the API, with two workers on all queues, between the web process's looks."""
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
    """Look at failed jobs and take some out, each by its id."""
    fill(place, size)
    oldest, *_, second, newest = (job.id for job in many_failed(size))
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
    """How long this takes."""
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


class Embedded:
    """An SQLite file to measure on."""

    def __init__(self, folder: str) -> None:
        self.url = f"sqlite:///{folder}/jobs.db"

    def environment(self) -> dict[str, str]:
        """The environment of a process that uses it: only this, and no settings of the person who runs this."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("PALERMO_")}
        return own | {"PALERMO_URL": self.url}


def page(place: Ground, size: int) -> Figures:
    """Read the page of a queue with 20 large jobs, three times, on both brokers."""
    found = memory_of_page("RabbitMQ", place, size)
    with tempfile.TemporaryDirectory() as folder:
        embedded = Embedded(folder)
        palermo.connect(embedded.url)
        try:
            return {**found, **memory_of_page("SQLite", embedded, size)}
        finally:
            place.connect()


def memory_of_page(broker: str, place: Ground | Embedded, size: int) -> Figures:
    """What the page takes of the memory of a new web process: at most, and five seconds later."""
    jobs.noop.options(queue="small").enqueue(jobs.ORDER)
    for _ in range(20):
        jobs.noop.options(queue="large").enqueue({"text": "x" * (1_000 * size)})
    with served(place) as (url, pid), httpx.Client(base_url=url, timeout=120) as http:
        for _ in range(3):  # what any page takes is not counted
            http.get("/queues/small").raise_for_status()
        before = pss_bytes([pid])
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak is counted from here
        began = time.perf_counter()
        for _ in range(3):
            http.get("/queues/large").raise_for_status()
        took = (time.perf_counter() - began) / 3
        [peak] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:")]
        time.sleep(5.0)
        after = pss_bytes([pid])
    return {
        f"{broker}: page s": took,
        f"{broker}: peak MB": int(peak.split()[1]) / 1e3,
        f"{broker}: kept MB": (after - before) / 1e6,
    }


def recurring(place: Ground, size: int) -> Figures:
    """See when recurring jobs that are due together are queued: at first, later, and after a kill of the leader."""
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
                time.sleep(0.005)  # each look costs this process and the broker a millisecond that the jobs need
            found.append(1e3 * (time.time() - tick))
        time.sleep(3.0)

    with worker(place, "keeper") as leader:
        put(366 * 86_400.0, "far")
        idled = idle(leader.pid)
        put(20.0, "near")
        for _ in range(4):
            see_tick()
        with worker(place, "keeper"):
            until(lambda: len(palermo.inspector().workers.list()) == 2)
            leader.kill()
            see_tick()
    return {
        "half ms late": statistics.median(half[1:-1]),
        "last ms late": statistics.median(last[1:-1]),
        "last of the first tick ms late": last[0],
        "last after a kill ms late": last[-1],
        "idle leader %": idled,
    }


def scheduled(place: Ground, size: int) -> Figures:
    """List the first page, look for one id, cancel one, while other jobs come due.

    Then the same with a new leader, after a kill. How late the other jobs come is measured without the far jobs as
    well, and with them but without a listing.
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

    def led() -> bool:
        return any("main" in (one["duties"] or ()) for one in inspector.workers.list())

    def look(when: str, number: int) -> None:
        timed(f"{when}: first page s", lambda: inspector.scheduled.list(limit=100))
        timed(f"{when}: again s", lambda: inspector.scheduled.list(limit=100))
        timed(f"{when}: page half way s", lambda: inspector.scheduled.list(offset=size // 2, limit=100))
        timed(f"{when}: no such id s", lambda: client.run(lambda broker: broker.scheduled(nobody)))
        timed(f"{when}: cancel one s", lambda: inspector.scheduled.cancel(f"far-{number}"))

    def phase(name: str) -> None:
        phases.append((name, time.time()))

    with worker(place, "keeper") as leader:
        until(led)
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
            found[f"{name}: p99 late ms"] = 1e3 * times[len(times) * 99 // 100]
            found[f"{name}: worst late ms"] = 1e3 * times[-1]
        leader.kill()
    with worker(place, "keeper"):
        until(led)
        look("new leader", size // 4)
    return found


@contextmanager
def arrivals(place: Ground, queue: str) -> Iterator[list[tuple[float, float]]]:
    """Jobs in this queue, ten a second. Yields when each was due (its id: pika cuts headers), and how late it was."""
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


def registry(place: Ground, size: int) -> Figures:
    """List the queues twice in one session, after this number of queues was created and deleted."""
    client = palermo.connect(place.url, exchange=place.exchange)
    place.make("stays")
    with pika.BlockingConnection(pika.URLParameters(place.url)) as connection:
        channel = connection.channel()
        for number in range(size // 2):
            for value in (True, None):
                record = {"format": 1, "kind": "queue", "name": f"gone-{number}", "value": value}
                channel.basic_publish("", f"{place.exchange}.~facts", json.dumps(record).encode())
    time.sleep(1.0)
    inspector = palermo.inspector()
    took = list[float]()
    for _ in range(6):
        began = time.perf_counter()
        inspector.queues.list()
        took.append(time.perf_counter() - began)
    client.close()
    return {"first ms": 1e3 * took[0], "again ms": 1e3 * statistics.median(took[1:])}


#: Of each: the sizes, and what is measured.
SCENARIOS: Mapping[str, tuple[tuple[int, ...], Callable[[Ground, int], Figures]]] = {
    "keys": ((1_000, 10_000, 50_000), keys),
    "start": ((100, 1_000, 3_000), start),
    "wake": ((10, 100, 1_000), wake),
    "tenants": ((10, 100, 1_000), tenants),
    "doctor": ((30, 300, 1_000), doctor),
    "overview": ((100, 1_000, 3_000), overview),
    "one": ((1_000, 10_000, 50_000), one),
    "history": ((10_000, 100_000, 1_000_000), history),
    "page": ((50, 500, 5_000), page),
    "scheduled": ((10_000, 100_000, 200_000), scheduled),
    "registry": ((100, 1_000, 10_000), registry),
    "recurring": ((100, 1_000, 3_000), recurring),
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
    parser.add_argument("--sizes", help="numbers, as 100,1000,3000; those of the table unless given")
    given = parser.parse_args()
    sizes, measure = SCENARIOS[given.what]
    if given.sizes:
        sizes = tuple(int(size) for size in given.sizes.split(","))
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
