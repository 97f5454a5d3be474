"""Redis and its workers are killed: every job whose enqueue returned runs, and the killed worker's job runs again."""

import asyncio
import subprocess
import sys

from palermo.brokers.redis.workers import LEASE
from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.core.address import parse_url
from palermo.core.lifecycle import Ack
from palermo.errors import BrokerError
from tests import redis_node
from tests.contract.tools import PATIENT, Report, consume, counts, message, take, until
from tests.helpers import Stopwatch

#: A worker that takes one job, says so, and holds it.
_HOLDER = """
import asyncio, sys
from palermo.contract.broker import SessionParameters, open_broker
from palermo.core.address import parse_url
from tests.contract.tools import Report, consume, take

async def hold():
    broker = await open_broker(SessionParameters(address=parse_url(sys.argv[1])))
    worker = await consume(broker, report=Report("jobs", pid=1))
    print((await take(worker)).message.id, flush=True)
    await asyncio.Event().wait()

asyncio.run(hold())
"""


def test_u2_a_killed_workers_job_runs_again_within_seconds_and_nobody_does_anything() -> None:
    async def recover(url: str, killed: subprocess.Popen[str]) -> float:
        broker = await open_broker(SessionParameters(address=parse_url(url), timeout=PATIENT))
        heir = await consume(broker, report=Report("jobs", pid=2))
        assert await counts(broker) == (0, 1)
        waiting = asyncio.ensure_future(take(heir))
        killed.kill()
        watch = Stopwatch()
        again = await waiting
        took = watch.seconds()
        assert (again.message.id, again.redelivered, again.deaths) == ("7c9e", True, ("pid:1@example",))
        await heir.settle(again, Ack())
        await broker.close()
        return took

    async def publish(url: str) -> None:
        broker = await open_broker(SessionParameters(address=parse_url(url), timeout=PATIENT))
        await broker.publish(message("7c9e"))
        await broker.close()

    with redis_node.running() as node:
        asyncio.run(publish(node.url))
        command = [sys.executable, "-c", _HOLDER, node.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "7c9e\n"
            took = asyncio.run(recover(node.url, worker))

    # The lease, and a machine that may stand still for a while.
    assert took < 3 * LEASE


def test_a_server_that_is_killed_again_and_again_loses_no_job_that_was_enqueued() -> None:
    async def storm(node: redis_node.RedisNode) -> tuple[set[str], set[str]]:
        session = SessionParameters(address=parse_url(node.url), timeout=PATIENT)
        enqueued: set[str] = set()
        for life in range(5):
            broker = await open_broker(session)
            publishing = [asyncio.ensure_future(publish(broker, f"{life}-{part}", enqueued)) for part in range(4)]
            wanted = len(enqueued) + 200
            await until(lambda wanted=wanted: asyncio.sleep(0, len(enqueued) >= wanted), True)  # type: ignore[misc]
            node.kill9()
            await asyncio.wait(publishing)
            await broker.close()
            node.start()
        broker = await open_broker(session)
        found = {one.id for one in (await broker.browse("jobs", limit=100_000)).messages}
        await broker.close()
        return enqueued, found

    with redis_node.running() as node:
        enqueued, found = asyncio.run(storm(node))

    assert len(enqueued) >= 1_000
    assert enqueued - found == set()


async def publish(broker: Broker, name: str, enqueued: set[str]) -> None:
    """Publish jobs until the server is gone."""
    number = 0
    while True:
        id = f"{name}-{number}"
        try:
            await broker.publish(message(id))
        except BrokerError:
            return
        enqueued.add(id)
        number += 1
