"""Every page of the web with very much behind it, asked again and again beside a worker that works.

    python -m benchmarks.pages [--url amqp://…] [--failed 200000] [--scheduled 100000] [--records 1000000] [--rounds 10]

Seeds failed jobs, scheduled jobs (one in four waits for a retry) and the journal, starts a worker that always has jobs,
and asks for the addresses of all pages in turns. Printed are the median and the worst time of each, and its size. The
goals are 300 ms at the median and 1 s at worst, after the first reading of the failed jobs and of the journal.
"""

import argparse
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import httpx
from msgspec.structs import replace
from starlette.routing import BaseRoute, Mount

from benchmarks import jobs, replay
from benchmarks.contest import machine, versions
from benchmarks.failed_jobs import fill, many_failed
from benchmarks.ground import Ground, ground
from benchmarks.watched import served
from palermo.client.client import default_client
from palermo.contract.broker import Broker
from palermo.core.failure import Failure
from palermo.core.lifecycle import retry
from palermo.core.message import Message
from palermo.webui.pages import ROUTERS

#: Milliseconds: the median and the worst of a page.
GOAL, WORST = 300.0, 1_000.0

#: Seconds in which scheduled jobs are due; jobs that wait at least while pages are asked for; jobs of one call.
_AHEAD, _WAITING, _BATCH = 7 * 86_400, 5_000, 5_000

#: What stands for the names in addresses, and pages with a filter, which read more than the first rows.
_FILTERED = (
    "/failures?by=groups",
    "/failures?text=customer",
    "/failures?error=Refused&worker=*@worker-host",
    "/scheduled?queue=queue-3",
    "/scheduled?due_from=24h&due_until=48h",
    "/scheduled?page=100",
    "/retries?queue=queue-3",
    "/history?text=order+4711+",
    "/history?state=failed",
    "/search?q=4711",
    "/search?q=error%3ARefused+queue%3Aqueue-3",
    "/statistics?window=month",
)


def schedule(count: int) -> None:
    """Schedule so many jobs, one in four of which has failed and waits for a retry."""
    now = int(time.time())
    error = Failure(exception_class="shop.errors.Refused", message="no", stack_trace="", failed_at=now - 60)

    def made() -> Iterator[Message]:
        for number, job in enumerate(many_failed(count)):
            after = 600 + number * _AHEAD / count
            bare = Message(id=job.id, queue=job.queue, job=job.job, body=job.body, created_at=now, preview=job.preview)
            if number % 4:
                yield replace(bare, run_at=now + after)
            else:
                yield retry(bare, error, worker="pid:1@worker-host/worker-1", now=now, delay=after)

    waiting = list(made())
    for start in range(0, count, _BATCH):
        default_client().run(partial(_publish, waiting[start : start + _BATCH]))


async def _publish(messages: list[Message], broker: Broker) -> int:
    return await broker.publish_many(messages)


@contextmanager
def working(place: Ground) -> Iterator[None]:
    """A worker that always has jobs."""
    command = [sys.executable, "-m", "palermo", "worker", jobs.__name__, "-q", jobs.QUEUE, "--log-level", "warning"]
    over = threading.Event()

    def supply() -> None:
        while not over.wait(1):
            if place.waiting() < _WAITING:
                jobs.noop.enqueue_many((jobs.ORDER,) for _ in range(_WAITING))

    jobs.noop.enqueue_many((jobs.ORDER,) for _ in range(_WAITING))
    process = subprocess.Popen(command, env=place.environment())
    supplier = threading.Thread(target=supply)
    supplier.start()
    try:
        yield
    finally:
        over.set()
        supplier.join()
        process.terminate()
        process.wait()


def addresses(routes: list[BaseRoute], http: httpx.Client) -> list[str]:
    """The addresses of all pages that are asked for without a form, with names that exist."""
    failed = http.get("/api/failed?limit=1&newest=true").json()["rows"][0]["id"]
    ended = http.get("/api/history?limit=1").json()["rows"][0]["id"]
    later = http.get("/api/scheduled?limit=1").json()["rows"][0]["id"]
    worker = http.get("/api/workers").json()["rows"][0]["id"]
    known = {"/queues/{name}": [jobs.QUEUE], "/jobs/{id}": [failed, ended, later], "/workers/{id}": [worker]}
    known |= {"/classes/{name}": ["shop.jobs.job3"]}
    found: list[str] = []
    for route in routes:
        path = str(getattr(route, "path", "")).replace(":palermo", "")
        if isinstance(route, Mount) or "GET" not in (getattr(route, "methods", None) or ()):
            continue
        if "{" in path:
            found += [path.partition("{")[0] + name for name in known.get(path, ())]
        elif path != "/live" and "confirm" not in path and not path.startswith("/sign-in"):
            found.append(path)
    return [*dict.fromkeys(found), *_FILTERED]


def measure(url: str, rounds: int) -> None:
    """Ask and print."""
    routes = [route for router in ROUTERS for route in router.routes]
    with httpx.Client(base_url=url, timeout=300, follow_redirects=True) as http:
        began = time.perf_counter()
        first = {path: _timed(http, path)[0] for path in ("/failures", "/history", "/scheduled", "/retries")}
        while http.get("/api/history?limit=1").status_code != 200 or "data-poll" in http.get("/failures").text:
            time.sleep(0.5)
        print(f"all read after {time.perf_counter() - began:.0f} s; until then", end=" ")
        print(", ".join(f"{path} answered in {taken:.0f} ms" for path, taken in first.items()), flush=True)
        asked = addresses(routes, http)
        taken: dict[str, list[float]] = {path: [] for path in asked}
        size = dict.fromkeys(asked, 0)
        for _ in range(rounds):
            for path in asked:
                milliseconds, size[path] = _timed(http, path)
                taken[path].append(milliseconds)
    print(f"\n{'page':58} {'median ms':>9} {'worst ms':>9} {'kB':>6}")
    for path, times in sorted(taken.items(), key=lambda each: -statistics.median(each[1])):
        median, worst = statistics.median(times), max(times)
        missed = "  missed" if median > GOAL or worst > WORST else ""
        print(f"{path[:58]:58} {median:>9.0f} {worst:>9.0f} {size[path] / 1_000:>6.0f}{missed}")


def _timed(http: httpx.Client, path: str) -> tuple[float, int]:
    began = time.perf_counter()
    answer = http.get(path)
    taken = 1_000 * (time.perf_counter() - began)
    if answer.status_code != 200:
        print(f"{path}: {answer.status_code}", flush=True)
    return taken, len(answer.content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", help="a broker to measure on; without it a private node is started")
    for what, count in (("failed", 200_000), ("scheduled", 100_000), ("records", 1_000_000), ("rounds", 10)):
        parser.add_argument(f"--{what}", type=int, default=count, help="%(default)s unless given")
    given = parser.parse_args()
    with ground(given.url) as place:
        place.connect()
        print(f"{versions(place.version)}; {machine()}")
        print(f"{given.failed:,} failed, {given.scheduled:,} scheduled, {given.records:,} records", flush=True)
        began = time.perf_counter()
        fill(place, given.failed)
        schedule(given.scheduled)
        replay.fill(place, given.records)
        print(f"seeded in {time.perf_counter() - began:.0f} s", flush=True)
        with working(place), served(place) as (url, _):
            measure(url, given.rounds)
        place.purge()


if __name__ == "__main__":
    main()
