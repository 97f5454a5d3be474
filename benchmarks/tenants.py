"""The cost of tenants: jobs taken per second with and without them, and thousands of them on one queue.

    python -m benchmarks.tenants --tenants 10000

Everything is in this process: publishing, dealing, taking, one after the other where it matters. Jobs do nothing.
"""

import argparse
import asyncio
import resource
import time
import uuid
from contextlib import suppress

from benchmarks.ground import ground
from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.contract.worker_info import WorkerInfo
from palermo.core.address import parse_url
from palermo.core.election import Duty
from palermo.core.lifecycle import Ack
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection


def _message(tenant: str = "") -> Message:
    return Message(id=str(uuid.uuid4()), queue="jobs", job="bench.nothing", body=b"[1]", tenant=tenant)


def _info(slots: int) -> WorkerInfo:
    return WorkerInfo(
        id="pid:1@bench", host="bench", pid=1, queues=("jobs",), slots=slots, state="idle", started_at=time.time()
    )


async def _take(broker: Broker, count: int, slots: int) -> float:
    """Jobs taken and settled per second."""
    info = _info(slots)
    consumer = await broker.consume(QueueSelection(("jobs",)), slots=slots, tag=info.id, report=lambda: info)
    left = count

    async def serve(slot: int) -> None:
        nonlocal left
        while left > 0:
            delivery = await consumer.receive(slot)
            await consumer.settle(delivery, Ack())
            left -= 1

    began = time.perf_counter()
    serving = [asyncio.ensure_future(serve(slot)) for slot in range(1, slots + 1)]
    await asyncio.wait(serving, return_when=asyncio.FIRST_COMPLETED)
    took = time.perf_counter() - began
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)
    await consumer.close()
    return count / took


async def _run(url: str, jobs: int, tenants: int) -> None:
    session = SessionParameters(address=parse_url(url), exchange=f"bench-{uuid.uuid4().hex[:8]}", timeout=60)
    publisher, leader, worker = [await open_broker(session) for _ in range(3)]
    keeping = asyncio.ensure_future(leader.run_scheduler())
    while len(leader.duties) < len(Duty):  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)
    for slots in (1, 4):
        for name, several in (("no tenant", 0), ("1 tenant", 1), ("10 tenants", 10)):
            found = [_message(f"t{n % several}" if several else "") for n in range(jobs)]
            began = time.perf_counter()
            await publisher.publish_many(found)
            stored = jobs / (time.perf_counter() - began)
            print(f"{slots} slots, {name}: stored {stored:,.0f}/s, taken {await _take(worker, jobs, slots):,.0f}/s")
    if tenants:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        await publisher.publish_many(_message(f"tenant-{n}") for n in range(tenants))
        print(f"{tenants:,} tenants, one job each: stored {tenants / (time.perf_counter() - began):,.0f}/s")
        began = time.perf_counter()
        counted = sum((await publisher.tenants.totals()).values())
        print(f"counted {counted:,} of them in {time.perf_counter() - began:.1f} s")
        print(f"taken {await _take(worker, counted, 4):,.0f}/s")
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(f"memory of this process grew by {grown / 1024:.0f} MB")
        began = time.perf_counter()
        await publisher.publish(_message("late"))
        await _take(worker, 1, 1)
        print(f"a job of a new tenant was run {1_000 * (time.perf_counter() - began):.0f} ms after its enqueuing began")
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping
    await publisher.delete("jobs")
    for broker in (publisher, leader, worker):
        await broker.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a broker to measure on; without it a private node is started")
    parser.add_argument("--jobs", type=int, default=2_000)
    parser.add_argument("--tenants", type=int, default=0)
    given = parser.parse_args()
    with ground(given.url) as place:
        asyncio.run(_run(place.url, given.jobs, given.tenants))
