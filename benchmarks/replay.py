"""A journal of very many records, read by a web process that has just started: how long that takes, and its memory.

    python -m benchmarks.replay [--url amqp://…] [-n 1000000]

Prints figures and judges none: the goal is 100,000 records a second, with memory that does not grow with them.
"""

import argparse
import random
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
from pika import BasicProperties

from benchmarks.ground import Ground, ground
from benchmarks.processes import cpu_seconds
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT
from palermo.client.client import Client
from palermo.core.journal_records import encode, encode_record
from palermo.core.topology import internal
from palermo.settings.settings import Settings

#: Records in a batch: as many as a busy worker stores together.
_BATCH = 500

_PAGES = (
    ("first page", "/history"),
    ("last page", "/history?page={last}"),
    ("of one queue", "/history?queue=queue-3"),
    ("that failed", "/history?state=failed"),
    ("that ran for long", "/history?longer=10s"),
    ("with a text in few", "/history?text=order+4711+"),
    ("with a text in none", "/history?text=zzzzzz"),
    ("of one job", "/jobs/{id}"),
    ("actions", "/audit"),
)


def batches(count: int) -> Iterator[bytes]:
    """So many records of jobs as a shop has them: of each that it was enqueued and ended; one in fifty fails."""
    chance = random.Random(6)
    began = time.time() - count / 1_000
    held: list[dict[str, Any]] = []
    for number in range(count // 2):
        kind = int(chance.paretovariate(0.7)) % 60
        known = {
            "id": str(uuid.UUID(int=chance.getrandbits(128), version=4)),
            "job": f"shop.jobs.job{kind % 20}",
            "queue": f"queue-{kind % 7}",
        }
        at = round(began + number / 500, 3)
        run = {**known, "attempt": 1, "slot": 1 + number % 8, "wait": chance.random(), "took": chance.expovariate(1)}
        held.append({"kind": "enqueued", "at": at, **known})
        if number % 50:
            held.append({"kind": "succeeded", "at": at, **run})
        else:
            why = {"error": "shop.errors.Refused", "message": f"order {number} was not delivered"}
            held.append({"kind": "failed", "at": at, **run, **why})
        if len(held) >= _BATCH:
            yield encode(f"pid:{kind}@worker-host", [*map(encode_record, held)])
            held = []
    yield encode("pid:1@worker-host", [*map(encode_record, held)])


def fill(place: Ground, count: int) -> int:
    """Write the journal; how many bytes it has."""
    with Client(Settings(url=place.url, exchange=place.exchange)) as client:
        client.run(lambda broker: broker.journal.append(encode("", [])))
    size = 0
    properties = BasicProperties(delivery_mode=PERSISTENT, timestamp=int(time.time()))
    with pika.BlockingConnection(pika.URLParameters(place.url)) as connection:
        channel = connection.channel()
        for body in batches(count):
            channel.basic_publish("", internal(place.exchange, "journal"), body, properties)
            size += len(body)
    return size


class WebProcess:
    """`palermo web`, started now."""

    def __init__(self, place: Ground) -> None:
        command = [str(Path(sys.executable).with_name("palermo")), "web", "--no-token", "--port", "0"]
        self.began = time.perf_counter()
        self._process = subprocess.Popen(command, env=place.environment(), stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        self.url = self._process.stderr.readline().strip().rstrip("/")
        self.said = ""
        self._read = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def wait(self) -> float:
        """Wait until it has read the journal; the seconds that took, as it says itself."""
        self._read.wait(900)
        found = re.search(r"seconds=([\d.]+)", self.said)
        assert found, "it has not read the journal"
        return float(found[1])

    def memory(self, what: str) -> int:
        """Its memory in MB: VmRSS now, VmHWM at most."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith(what))) // 1_024

    @property
    def cpu(self) -> float:
        """Seconds of CPU that it has used."""
        return cpu_seconds([self._process.pid])

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(20)

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if "the journal has been read" in line:
                self.said = line
                self._read.set()


def measure(place: Ground, count: int) -> None:
    web = WebProcess(place)
    before, cpu = web.memory("VmRSS"), web.cpu
    took = web.wait()
    cpu = web.cpu - cpu
    print(f"read                      {took:8.1f} s, {count / took:,.0f} records a second; {cpu:.1f} s of CPU")
    print(f"from start to pages       {time.perf_counter() - web.began:8.1f} s")
    most = web.memory("VmHWM")
    print(f"memory                    {before} MB before, {web.memory('VmRSS')} MB after, {most} MB at most")
    with httpx.Client(base_url=web.url, timeout=60) as http:
        found = http.get("/api/history", params={"limit": 1}).json()
        print(f"jobs that ended           {found['total']:8,}")
        for name, path in _PAGES:
            asked = path.format(last=found["total"] // 50, id=found["rows"][0]["id"])
            taken = []
            for _ in range(4):
                began = time.perf_counter()
                assert http.get(asked).status_code == 200, asked
                taken.append(1_000 * (time.perf_counter() - began))
            print(f"page {name:20} {taken[0]:6.0f} ms, {min(taken[1:]):6.0f} ms again")
    print(f"memory                    {web.memory('VmRSS')} MB after all these")
    web.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", help="a broker to measure on; without it a private node is started")
    parser.add_argument("-n", type=int, default=1_000_000, metavar="RECORDS", help="records; %(default)s unless given")
    options = parser.parse_args()
    with ground(options.url) as place:
        began = time.perf_counter()
        size = fill(place, options.n)
        print(f"RabbitMQ {place.version}, {options.n:,} records of {size / options.n:.0f} bytes written", end=" ")
        print(f"in {time.perf_counter() - began:.0f} s")
        measure(place, options.n)


if __name__ == "__main__":
    main()
