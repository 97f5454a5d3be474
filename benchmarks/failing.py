"""The cost of a job that fails: settled into a classic queue, into a quorum queue, and into its log as well.

    python -m benchmarks.failing [--url amqp://…] [--rounds 9] [-n 400] [--slots 1]

A consumer in this process takes jobs and settles them as failed, and runs nothing. The three kinds take
turns; "quorum, no log" is Palermo with the writing of the log taken out.
"""

import argparse
import asyncio
import secrets
import time
from collections.abc import Sequence
from statistics import median
from unittest.mock import patch

from benchmarks.failed_jobs import many_failed
from benchmarks.ground import ground
from palermo.brokers.rabbitmq.browsing.failed_log import FailedLog
from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.contract.worker_info import WorkerInfo
from palermo.core.address import parse_url
from palermo.core.lifecycle import Fail
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection
from palermo.core.topology import CLASSIC, QUORUM
from tests.rabbitmq_tidy import delete_all

_KINDS = (("classic", CLASSIC, True), ("quorum, no log", QUORUM, False), ("quorum and log", QUORUM, True))

_QUEUE, _TAG = "work", "pid:1@benchmark"


async def _unwritten(*_: object) -> None:
    """Stands for FailedLog.stored."""


def _report() -> WorkerInfo:
    return WorkerInfo(id=_TAG, host="benchmark", pid=1, queues=(_QUEUE,), slots=1, state="working", started_at=0)


async def settle_all(broker: Broker, jobs: Sequence[Message], slots: int) -> tuple[float, float]:
    """Seconds that it takes to settle as many jobs of the queue, each as one of these, and of this process's CPU."""
    consumer = await broker.consume(QueueSelection.parse(_QUEUE), slots=slots, tag=_TAG, report=_report)
    waiting = iter(jobs)

    async def serve(slot: int) -> None:
        for failed in waiting:
            await consumer.settle(await consumer.receive(slot), Fail(failed))

    began, spent = time.perf_counter(), time.process_time()
    await asyncio.gather(*(serve(slot) for slot in range(1, slots + 1)))
    took = time.perf_counter() - began, time.process_time() - spent
    await consumer.close()
    return took


async def measured(url: str, kind: str, jobs: Sequence[Message], slots: int) -> tuple[float, float]:
    """Microseconds a job, and those of them that are this process's CPU."""
    session = SessionParameters(address=parse_url(url), exchange=f"bench-{secrets.token_hex(4)}", queue_type=kind)
    broker = await open_broker(session)
    try:
        for some in (jobs[:50], jobs):  # the first ones make the queues
            # A slot that has done its part is handed one more, for which another would wait.
            await broker.publish_many(
                Message(id=f"{n}", queue=_QUEUE, job="shop.jobs") for n in range(len(some) + slots)
            )
            took, spent = await settle_all(broker, some, slots)
        return 1e6 * took / len(jobs), 1e6 * spent / len(jobs)
    finally:
        await broker.close()
        await asyncio.to_thread(delete_all, url, session.exchange)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", help="a broker to measure on; without it a private node is started")
    parser.add_argument("--rounds", type=int, default=9, help="of all three; %(default)s unless given")
    parser.add_argument("-n", type=int, default=400, metavar="JOBS", help="of each; %(default)s unless given")
    parser.add_argument("--slots", type=int, default=1, help="jobs at once; %(default)s unless given")
    options = parser.parse_args()
    jobs = list(many_failed(options.n))
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name, _, _ in _KINDS}
    with ground(options.url) as place:
        print(f"RabbitMQ {place.version}, {options.n:,} jobs with tracebacks of 2 KB, {options.slots} at once")
        place.connect()
        place.make("scratch")
        for _ in range(options.rounds):
            for name, kind, logged in _KINDS:
                with patch.object(FailedLog, "stored", FailedLog.stored if logged else _unwritten):
                    taken[name].append(asyncio.run(measured(place.url, kind, jobs, options.slots)))
        for name, figures in taken.items():
            took, spent = zip(*figures, strict=True)
            wall = f"{median(took):6.0f} µs a job ({min(took):.0f} to {max(took):.0f})"
            print(f"{name:16} {wall}, CPU {median(spent):5.0f} µs")


if __name__ == "__main__":
    main()
