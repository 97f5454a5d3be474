"""Measures how late delayed jobs come, what many of them cost, and whether kills of the broker lose any.

    python -m benchmarks.delays lateness     1,000 jobs with random delays of 0.1 to 20 s
    python -m benchmarks.delays sustained    200 a second are scheduled, for 30 s
    python -m benchmarks.delays crowd        a job due in 1 s, behind 100,000 that are due tomorrow
    python -m benchmarks.delays behind       a job behind 4,000 that are due tomorrow, and that another program put
                                             into the job queue all the same
    python -m benchmarks.delays kills        20,000 jobs and a kill -9 of the broker, ten times

On a node of its own, or for the first four on the one that --url names.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Literal

import pika

from benchmarks.ground import ground
from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.contract.scheduled import CANCEL, MOVE, RUN, AlteredJob, ScheduledFilter, ScheduledPage
from palermo.core.address import parse_url
from palermo.core.message import Message
from palermo.worker.handle import WorkerHandle, start_worker
from soak.survival import Receiver, survive, until
from tests.rabbitmq_node import LocalNode, find_server
from tests.rabbitmq_tidy import delete_all

DAY = 86_400.0

#: Jobs of another program that are not due yet, in front of one that is.
EARLY = 4_000


def message(id: str, run_at: float | None = None, *, size: int = 1_000) -> Message:
    return Message(id=id, queue="jobs", job="nobody.runs.it", body=b"[" + b" " * size + b"]", run_at=run_at)


def told(name: str, late: Sequence[float]) -> None:
    ordered = sorted(late)
    at = [ordered[int(part * (len(ordered) - 1))] * 1_000 for part in (0.0, 0.5, 0.99, 1.0)]
    print(
        f"{name}: {len(ordered):,} jobs, late by min {at[0]:.1f}, p50 {at[1]:.1f}, p99 {at[2]:.1f}, max {at[3]:.1f} ms"
    )


async def until_led(broker: Broker) -> None:
    while not any(worker.clock for worker in await broker.workers()):  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.1)


def memory(worker: WorkerHandle) -> float:
    """What the worker's parent holds, in MB."""
    status = Path(f"/proc/{worker.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1_024


async def lateness(broker: Broker, receiver: Receiver) -> None:
    now = time.time()
    await broker.publish_many(message(f"{n}", now + random.uniform(0.1, 20)) for n in range(1_000))
    await until(lambda: len(receiver.came) == 1_000)
    told("random delays of 0.1 to 20 s", receiver.late)


async def sustained(broker: Broker, receiver: Receiver) -> None:
    begun, sent = time.time(), 0
    while sent < 6_000:
        wanted = min(6_000, int((time.time() - begun) * 200))
        now = time.time()
        await broker.publish_many(message(f"{n}", now + random.uniform(0.1, 20)) for n in range(sent, wanted))
        sent = wanted
        await asyncio.sleep(0.01)
    await until(lambda: len(receiver.came) == sent)
    told("200 a second, delays of 0.1 to 20 s", receiver.late)


async def crowd(broker: Broker, receiver: Receiver, worker: WorkerHandle) -> None:
    before = memory(worker)
    tomorrow = time.time() + DAY
    begun = time.perf_counter()
    await broker.publish_many(message(f"far-{n}", tomorrow + n % 600) for n in range(100_000))
    print(f"100,000 due tomorrow: scheduled in {time.perf_counter() - begun:.1f} s")
    for number in range(20):
        await broker.publish(message(f"near-{number}", time.time() + 1))
        await asyncio.sleep(0.1)
    await until(lambda: len(receiver.came) == 20)
    told("due in 1 s behind them", receiver.late)
    print(f"memory of the worker that keeps the time: {before:.1f} MB before, {memory(worker):.1f} MB now")

    async def timed(name: str, work: Awaitable[ScheduledPage | list[AlteredJob]]) -> None:
        begun = time.perf_counter()
        found = await work
        total = len(found) if isinstance(found, list) else found.total
        print(f"{name}: {time.perf_counter() - begun:.2f} s ({total:,})")

    await timed("first page of 100", broker.scheduled(ScheduledFilter()))
    await timed("page by another job's name", broker.scheduled(ScheduledFilter(job="other")))
    await timed("cancel one by id", broker.alter_scheduled(ScheduledFilter(ids=frozenset(["far-99999"])), CANCEL))
    await timed(
        "move one by id", broker.alter_scheduled(ScheduledFilter(ids=frozenset(["far-5"])), MOVE, at=tomorrow + 5)
    )
    await timed("run one by id", broker.alter_scheduled(ScheduledFilter(ids=frozenset(["far-6"])), RUN))
    looking = asyncio.ensure_future(broker.scheduled(ScheduledFilter(job="other")))
    receiver.late.clear()
    now = time.time()
    await broker.publish_many(message(f"beside-{n}", now + 0.5 + n * 0.01) for n in range(300))
    await until(lambda: sum(id.startswith("beside") for id in receiver.came) == 300)
    await looking
    told("due while all are looked through", receiver.late)
    await timed("cancel all", broker.alter_scheduled(ScheduledFilter(), CANCEL))
    print(f"memory of the worker that keeps the time: {memory(worker):.1f} MB")


async def behind(url: str, exchange: str, broker: Broker, receive: Callable[[], object], receiver: Receiver) -> None:
    await broker.publish(message("first"))
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        headers = {"job-class": "nobody.runs.it", "perform_job_at": int(time.time() + DAY)}
        for number in range(EARLY):
            properties = pika.BasicProperties(delivery_mode=2, message_id=f"{number}", headers=headers)
            channel.basic_publish(exchange, "jobs", b"[]", properties)
    await broker.publish(message("behind"))
    begun = time.perf_counter()
    receive()
    await until(lambda: "behind" in receiver.came)
    taken = time.perf_counter() - begun
    print(
        f"behind {EARLY:,} early jobs: {taken:.2f} s after the worker began to connect, {EARLY / taken:,.0f} a second"
    )


async def measure(url: str, what: str, queue_type: Literal["classic", "quorum"]) -> None:
    exchange = f"bench-{what}-{random.randrange(10**6)}"
    session = SessionParameters(address=parse_url(url), exchange=exchange, timeout=30.0, queue_type=queue_type)
    with start_worker(
        ["string"], queues="idle", url=url, exchange=exchange, queue_type=queue_type, log_level="error"
    ) as worker:
        broker = await open_broker(session)
        receiver = Receiver(session)
        receiving: set[asyncio.Task[None]] = set()

        def receive() -> None:
            receiving.add(asyncio.ensure_future(receiver.run()))

        await until_led(broker)
        if what != "behind":
            receive()
        match what:
            case "behind":
                await behind(url, exchange, broker, receive, receiver)
            case "crowd":
                await crowd(broker, receiver, worker)
            case "lateness":
                await lateness(broker, receiver)
            case "sustained":
                await sustained(broker, receiver)
        if receiver.early:
            print(f"EARLY: {receiver.early}")
        for task in receiving:
            task.cancel()
        await asyncio.wait(receiving)
        await broker.close()
    await asyncio.to_thread(delete_all, url, exchange)


def kills(times: int, jobs: int) -> None:
    server = find_server()
    if server is None:
        raise SystemExit("no rabbitmq-server is installed here, and no other broker may be killed.")
    with LocalNode(server) as node:
        for seed in range(times):
            found = asyncio.run(survive(node, f"kill-{seed}", jobs=jobs, spread=20.0, kill_after=10.0, seed=seed))
            print(f"kill {seed + 1}: {found}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["lateness", "sustained", "crowd", "behind", "kills"])
    parser.add_argument("--url", help="a RabbitMQ that runs; else one is started")
    parser.add_argument("--queue-type", choices=["classic", "quorum"], default="classic")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=20_000)
    given = parser.parse_args()
    if given.what == "kills":
        kills(given.times, given.jobs)
    else:
        with ground(given.url) as found:
            asyncio.run(measure(found.url, given.what, given.queue_type))


if __name__ == "__main__":
    main()
