"""The page of failed jobs with very many of them: how long the first load takes, and each page after it.

    python -m benchmarks.failed_jobs [--url amqp://…] [-n 200000] [--type quorum]

Prints figures and judges none: the goals are 300 ms for any page, 2 s for groups, after the first load.
"""

import argparse
import asyncio
import json
import random
import time
import uuid
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

import httpx
import pika

from benchmarks.ground import Ground, ground
from palermo.brokers.rabbitmq.amqp.connection import open_connection
from palermo.brokers.rabbitmq.amqp.messages import to_properties
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.client.client import Client
from palermo.contract.broker import SessionParameters
from palermo.core.address import parse_url
from palermo.core.failure import Failure
from palermo.core.lifecycle import fail
from palermo.core.message import Message
from palermo.core.topology import CLASSIC, FAILED_QUEUE, QUEUE_TYPES, QUORUM
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from palermo.views.filter import JobFilter
from palermo.webui.failed.failed_jobs import failed_jobs
from tests.webui.server import Web

T = TypeVar("T")

_FRAME = (
    '  File "/srv/shop/lib/python3.11/site-packages/package_{0}/module_{1}.py", line {2}, in step_{0}\n'
    "    return self._do_something_with(order, customer, retries=retries)\n"
    "           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
)
_ERRORS = ("ValueError", "ConnectionError", "shop.errors.Refused", "TimeoutError", "KeyError")

_PAGES = (
    ("first page", ""),
    ("last page", "page={last}"),
    ("of one queue", "queue=queue-3"),
    ("of jobs by a pattern", "job=shop.jobs.job1*"),
    ("of one error class", "error=Refused"),
    ("of the last hours", "since=@{middle}"),
    ("with a text in few", "text=order%204711"),
    ("with a text in frames", "text=module_7.py"),
    ("with a text in all", "text=customer"),
    ("with a text in none", "text=zzzzzz"),
)


def many_failed(count: int) -> Iterator[Message]:
    """Failed jobs as a shop has them: 60 kinds, some of them frequent, with tracebacks of 2 KB."""
    chance = random.Random(4)
    began = int(time.time()) - count
    for number in range(count):
        kind = int(chance.paretovariate(0.7)) % 60
        error = _ERRORS[kind % 5]
        text = f"order {number} of customer-{chance.randrange(10_000)}@example.org was not delivered"
        frames = "".join(_FRAME.format(depth, kind, 100 + depth) for depth in range(10))
        job = Message(
            id=str(uuid.UUID(int=chance.getrandbits(128), version=4)),
            queue=f"queue-{kind % 7}",
            job=f"shop.jobs.job{kind % 20}",
            body=json.dumps([number, {"order": number, "name": "x" * 100}]).encode(),
            created_at=began + number - 5,
            preview=f"{number}, {{'order': {number}, 'name': '{'x' * 60}'}}",
        )
        trace = f"Traceback (most recent call last):\n{frames}{error}: {text}\n"
        failure = Failure(exception_class=error, message=text, stack_trace=trace, failed_at=began + number)
        yield fail(job, failure, worker=f"pid:{kind}@worker-host/worker-1")


def fill(place: Ground, count: int) -> None:
    """Put them there as they come, by the thousand."""
    place.connect()
    place.make("scratch")
    waiting = many_failed(count)
    with pika.BlockingConnection(pika.URLParameters(place.url)) as connection:
        channel = connection.channel()
        channel.queue_declare(place.amqp_name(FAILED_QUEUE), durable=True)
        channel.queue_bind(place.amqp_name(FAILED_QUEUE), place.exchange, FAILED_QUEUE)
        while batch := list(islice(waiting, 1_000)):
            for job in batch:
                channel.basic_publish(place.exchange, FAILED_QUEUE, job.body, to_properties(job))


def fill_quorum(place: Ground, count: int) -> None:
    """The same as workers do it, by which they are in the log of failed jobs too."""

    async def publish() -> None:
        session = SessionParameters(address=parse_url(place.url), exchange=place.exchange, queue_type=QUORUM)
        link = await open_connection(session, "benchmark")
        broker = RabbitmqBroker(session, link)
        outbox = Outbox(session, link, broker._declarer)
        waiting = many_failed(count)
        while batch := list(islice(waiting, 1_000)):
            await outbox.publish_many(batch, into=lambda _: FAILED_QUEUE)
        await broker.close()

    asyncio.run(publish())


def memory(what: str) -> int:
    """This process's memory in MB: VmRSS now, VmHWM at most."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(what)) // 1_024


def timed(web: Web, path: str, rounds: int = 5) -> tuple[float, float]:
    """Milliseconds that a page takes: the first time, and at best after that."""
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        answer = web.http.get(path)
        taken.append(1_000 * (time.perf_counter() - began))
        assert answer.status_code == 200, f"{path}: {answer.status_code}"
    return taken[0], min(taken[1:])


def operation(web: Web, body: dict[str, Any]) -> tuple[float, str]:
    """Seconds that a requeue takes, and what it came to."""
    began = time.perf_counter()
    row = web.http.post("/api/failed/requeue", json=body).json()
    while not row["outcome"]:
        time.sleep(0.2)
        row = web.http.get(f"/api/operations/{row['id']}").json()
    return time.perf_counter() - began, row["outcome"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", help="a broker to measure on; without it a private node is started")
    parser.add_argument("-n", type=int, default=200_000, metavar="JOBS", help="failed jobs; %(default)s unless given")
    parser.add_argument("--type", choices=QUEUE_TYPES, default=CLASSIC, help="of the queue; %(default)s unless given")
    options = parser.parse_args()
    with ground(options.url) as place:
        began = time.perf_counter()
        (fill_quorum if options.type == QUORUM else fill)(place, options.n)
        print(f"RabbitMQ {place.version}, {options.n:,} failed jobs put there in {time.perf_counter() - began:.0f} s")
        while place.failed() < options.n:
            time.sleep(0.1)
        settings = Settings(url=place.url, exchange=place.exchange, queue_type=options.type)
        measure_inspector(settings)
        with Web(settings) as web:
            measure(web, options.n)


def measure_inspector(settings: Settings) -> None:
    """What a command line does in a session of its own, and again in the same one."""
    client = Client(settings)
    inspector = Inspector(client)

    def take(name: str, ask: Callable[[], T]) -> T:
        taken = []
        for _ in range(2):
            began = time.perf_counter()
            found = ask()
            taken.append(1_000 * (time.perf_counter() - began))
        print(f"inspector, {name:14} {taken[0]:6.0f} ms, {taken[1]:6.0f} ms again")
        return found

    newest = take("100 newest", lambda: inspector.failed.list(limit=100, newest=True))
    take("100 oldest", lambda: inspector.failed.list(limit=100))
    take("groups", inspector.failed.groups)
    take("the newest job", lambda: inspector.failed.show(newest.rows[0]["id"]))
    take("count of an error", lambda: inspector.failed.count(JobFilter(error="KeyError")))
    client.close()


def measure(web: Web, count: int) -> None:
    before = memory("VmRSS")
    web.http.timeout = httpx.Timeout(600)
    began = time.perf_counter()
    first, _ = timed(web, "/failures", 2)
    view = failed_jobs(web.app.state.site).view
    while not view.update(1).ready:
        pass
    print(f"first load                {time.perf_counter() - began:8.1f} s, its progress shown after {first:.0f} ms")
    print(f"memory                    {before} MB before, {memory('VmRSS')} MB after, {memory('VmHWM')} MB at most")
    print(f"temporary file            {view.index.bytes() / 1e6:8.0f} MB")
    middle = int(time.time()) - count // 2
    for name, query in _PAGES:
        asked = query.format(last=count // 50, middle=middle)
        cold, warm = timed(web, f"/failures?{asked}")
        print(f"page {name:24} {cold:6.0f} ms, {warm:6.0f} ms again")
        cold, warm = timed(web, f"/failures?by=groups&{asked.replace(f'page={count // 50}', 'page=2')}")
        print(f"groups {name:22} {cold:6.0f} ms, {warm:6.0f} ms again")
    newest = [row["id"] for row in web.http.get("/api/failed?newest=true&limit=500").json()["rows"]]
    for what, body in (
        ("the newest one", {"ids": newest[:1]}),
        ("500 by id", {"ids": newest[1:]}),
        ("an error class", {"filter": {"error": "KeyError"}}),
    ):
        seconds, outcome = operation(web, body)
        print(f"requeue {what:18} {seconds:8.1f} s: {outcome}")
    began = time.perf_counter()
    view.request_reading()
    while view.update(1).reading:
        pass
    print(f"reading again             {time.perf_counter() - began:8.1f} s, {memory('VmHWM')} MB at most")


if __name__ == "__main__":
    main()
