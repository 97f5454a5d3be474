"""The web pages with very many jobs and records behind them: `python -m benchmarks.pages [times|watched]`.

    times     the median and the worst time of every page, beside a worker that always has jobs; and the processor time
              that `palermo web` spends on it
    watched   the throughput of two workers while a reader loads pages in a loop, against that without a reader

The goals of `times` are 300 ms at the median and 1 s at worst, once the pages have read all failed jobs and records.
"""

import argparse
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from starlette.routing import BaseRoute, Mount

from benchmarks import jobs, shop
from benchmarks.compare import Row, Sample, contest, machine, versions
from benchmarks.ground import ROOT, WORKER, Ground, add_url, ground
from benchmarks.processes import cpu_seconds, pss_bytes
from palermo.webui.pages import ROUTERS

#: Milliseconds: the median and the worst of a page.
GOAL, WORST = 300.0, 1_000.0

#: Jobs that always wait while pages are read.
_WAITING = 6_000

#: The pages that the reader of `watched` loads, the seconds between two pages, and the seconds of one turn.
_READ, _EVERY, _TURN = ("/", "/workers", "/failures"), 0.2, 2.0

#: Pages with a filter, which read more than the first rows.
_FILTERED = (
    "/failures?by=groups",
    "/failures?filter=customer",
    "/failures?filter=error:Refused+worker:*@worker-host",
    "/scheduled?filter=queue:queue-3",
    "/scheduled?filter=due_from:24h+due_until:48h",
    "/scheduled?page=100",
    "/retries?filter=queue:queue-3",
    "/history?filter=%22order+4711+%22",
    "/history?filter=state:failed",
    "/search?q=4711",
    "/search?q=error%3ARefused+queue%3Aqueue-3",
    "/statistics?window=month",
)


@contextmanager
def served(place: Ground) -> Iterator[tuple[str, int]]:
    """`palermo web` as a process: its address and its pid."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "palermo", "web", "--no-token", "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, env=place.environment(), stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while not _answers(address):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("palermo web does not answer.")
            time.sleep(0.1)
        yield address, process.pid
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return all(httpx.get(url + path, timeout=30).status_code == 200 for path in _READ)
    except httpx.TransportError:
        return False


@contextmanager
def working(place: Ground, workers: int) -> Iterator["Supply"]:
    """Workers that always have jobs."""
    supply = Supply(place)
    processes = [
        subprocess.Popen([*WORKER, "-q", jobs.QUEUE], cwd=ROOT, env=place.environment()) for _ in range(workers)
    ]
    try:
        while supply.done() < 500:
            time.sleep(0.1)
        yield supply
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
        place.purge()


class Supply:
    """Keeps the queue from running dry, between the turns that are measured."""

    def __init__(self, place: Ground) -> None:
        self._place = place
        self._given = 0
        self.fill()

    def done(self) -> int:
        """The number of jobs that were taken."""
        waiting = self._place.waiting()
        if not waiting:
            raise SystemExit("the workers ran out of jobs, so the figures mean nothing.")
        return self._given - waiting

    def fill(self) -> None:
        while self._given == 0 or self._place.waiting() < _WAITING:
            # Each has an id of its own: workers run a job that was taken back only once.
            jobs.noop.enqueue_many([(jobs.ORDER,)] * (_WAITING // 2))
            self._given += _WAITING // 2


class Reader:
    """Loads pages in a loop while it is on."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=30)
        self._on = threading.Event()
        self._over = False
        self.pages = 0
        self._thread = threading.Thread(target=self._read, name="reader")
        self._thread.start()

    def on(self) -> None:
        self._on.set()

    def off(self) -> None:
        self._on.clear()

    def close(self) -> None:
        self._over = True
        self._on.set()
        self._thread.join()
        self._http.close()

    def _read(self) -> None:
        while True:
            for path in _READ:
                self._on.wait()
                if self._over:
                    return
                self._http.get(path).raise_for_status()
                self.pages += 1
                time.sleep(_EVERY)


def watched(place: Ground, rounds: int) -> None:
    """Print the ratio of two workers' throughput with a reader to that without."""
    shop.put_failed(place, 2_000)
    place.make(jobs.QUEUE)
    with working(place, 2) as supply, served(place) as (url, pid):
        reader = Reader(url)

        def turn() -> Sample:
            supply.fill()
            time.sleep(0.3)
            before, began, spent = supply.done(), time.perf_counter(), cpu_seconds([pid])
            time.sleep(_TURN)
            done = supply.done() - before
            return Sample(
                rate=done / (time.perf_counter() - began), cpu=1e6 * (cpu_seconds([pid]) - spent) / max(1, done)
            )

        def play(_: Ground, number: int) -> tuple[Sample, Sample]:
            reader.on()
            first = turn()
            reader.off()
            return first, turn()

        row = Row(
            title="two workers, with a reader that loads five pages a second; CPU is that of `palermo web`",
            play=play,
            jobs=0,
            names=("watched", "alone"),
        )
        try:
            contest("watched", row, place, rounds=rounds, jobs=0)
        finally:
            reader.close()


def addresses(http: httpx.Client) -> list[str]:
    """The addresses of all pages without a form, with names that exist."""
    failed = http.get("/api/failed?limit=1&newest=true").json()["rows"][0]["id"]
    ended = http.get("/api/history?limit=1").json()["rows"][0]["id"]
    later = http.get("/api/scheduled?limit=1").json()["rows"][0]["id"]
    worker = http.get("/api/workers").json()["rows"][0]["id"]
    known = {"/queues/{name}": [jobs.QUEUE], "/jobs/{id}": [failed, ended, later], "/workers/{id}": [worker]}
    known |= {"/classes/{name}": ["shop.jobs.job3"]}
    routes: list[BaseRoute] = [route for router in ROUTERS for route in router.routes]
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


def times(place: Ground, rounds: int, *, queues: int, failed: int, scheduled: int, records: int) -> None:
    """Print the median and the worst time of each page."""
    print(f"{queues:,} queues, {failed:,} failed jobs, {scheduled:,} scheduled jobs, {records:,} records", flush=True)
    began = time.perf_counter()
    shop.put_failed(place, failed)
    shop.put_scheduled(scheduled)
    shop.put_journal(place, records)
    place.make(jobs.QUEUE)
    for number in range(queues - 1):
        jobs.noop.options(queue=f"queue-{number}").enqueue(jobs.ORDER)
    print(f"written in {time.perf_counter() - began:.0f} s", flush=True)
    with (
        working(place, 1) as supply,
        served(place) as (url, pid),
        httpx.Client(base_url=url, timeout=300, follow_redirects=True) as http,
    ):
        began = time.perf_counter()
        while http.get("/api/history?limit=1").status_code != 200 or "data-poll" in http.get("/failures").text:
            time.sleep(0.5)
        took, worked, memory = time.perf_counter() - began, cpu_seconds([pid]), pss_bytes([pid]) / 1e6
        print(
            f"read by the pages in {took:.0f} s; {worked:.0f} s of processor time and {memory:.0f} MB by now",
            flush=True,
        )
        asked = addresses(http)
        taken: dict[str, list[float]] = {path: [] for path in asked}
        size, spent = dict.fromkeys(asked, 0), dict.fromkeys(asked, 0.0)
        for _ in range(rounds):
            supply.fill()
            for path in asked:
                before = cpu_seconds([pid])
                milliseconds, size[path] = _timed(http, path)
                taken[path].append(milliseconds)
                spent[path] += cpu_seconds([pid]) - before
    print(f"\n{'page':58} {'median ms':>9} {'worst ms':>9} {'CPU ms':>7} {'kB':>6}")
    for path, found in sorted(taken.items(), key=lambda each: -statistics.median(each[1])):
        median, worst = statistics.median(found), max(found)
        missed = "  missed" if median > GOAL or worst > WORST else ""
        cpu = 1_000 * spent[path] / len(found)
        print(f"{path[:58]:58} {median:>9.0f} {worst:>9.0f} {cpu:>7.0f} {size[path] / 1_000:>6.0f}{missed}")


def _timed(http: httpx.Client, path: str) -> tuple[float, int]:
    began = time.perf_counter()
    answer = http.get(path)
    if answer.status_code != 200:
        print(f"{path}: {answer.status_code}", flush=True)
    return 1_000 * (time.perf_counter() - began), len(answer.content)


def main() -> None:
    parser = argparse.ArgumentParser(description="How the web pages behave with very many jobs and records.")
    parser.add_argument("row", nargs="?", choices=("times", "watched"), default="times", help="default: %(default)s")
    add_url(parser)
    parser.add_argument("--rounds", type=int, default=10, help="default: %(default)s")
    for what, count in (("queues", 100), ("failed", 200_000), ("scheduled", 100_000), ("records", 1_000_000)):
        parser.add_argument(f"--{what}", type=int, default=count, metavar="N", help="of `times`; default: %(default)s")
    given = parser.parse_args()
    with ground(given.url) as place:
        place.connect()
        if given.row == "watched":
            watched(place, given.rounds)
            return
        print(f"times: {versions(place.version)}; {machine()}")
        amounts = {what: getattr(given, what) for what in ("queues", "failed", "scheduled", "records")}
        times(place, given.rounds, **amounts)


if __name__ == "__main__":
    main()
