"""Redis and its workers are killed: every job whose enqueue returned runs, and the killed worker's job runs again."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from palermo.brokers.redis.broker import RedisBroker
from palermo.brokers.redis.jobs import id_in
from palermo.brokers.redis.workers import LEASE
from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.core.address import parse_url
from palermo.core.lifecycle import Ack
from palermo.errors import BrokerError
from tests import redis_node
from tests.contract.tools import PATIENT, Report, consume, counts, end_all_leases, message, take, until
from tests.harness.processes import WorkerProcess
from tests.harness.rig import Rig
from tests.helpers import HANGS, Stopwatch, eventually, has_traceback
from tests.scale import scaled

#: How often the server, a worker and a client are killed in the storm. PALERMO_KILLS=3 asks for fewer than 20.
KILLS = scaled(3, int(os.environ.get("PALERMO_KILLS") or 20))

#: A program that enqueues for ever, and writes down each job whose enqueue has returned.
_CLIENT = """
import itertools, sys
import palermo
from shop import write

for number in itertools.count():
    text = f"{sys.argv[1]}-{number}"
    palermo.enqueue("shop.note", [text], queue="jobs")
    write("enqueued", text)
"""

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


def test_a_job_whose_workers_connections_are_cut_again_and_again_runs_once(tmp_path: Path) -> None:
    with redis_node.running() as node, Rig(tmp_path, node.url, "palermo", module="shop") as rig:
        rig.enqueue("hold", "it", queue="jobs")
        worker = rig.worker("-c", "2")
        rig.await_lines(1)

        for _ in range(4):  # one more than deaths are allowed
            parked = worker.log.count("job parked, another worker has it")
            for kind in ("normal", "pubsub"):
                node.ask("CLIENT", "KILL", "TYPE", kind)
            # More than once if the worker was back between the two.
            eventually(lambda parked=parked: worker.log.count("job parked, another worker has it") > parked)  # type: ignore[misc]
        rig.open_gate()

        eventually(lambda: not any(row["pending"] or row["in_progress"] for row in rig.inspector.queues()))
        assert rig.lines() == ["it begins", "it ends"]
        assert rig.failed() == {}


def test_a_job_runs_once_whichever_of_its_workers_connections_is_cut(tmp_path: Path) -> None:
    """Redis itself ends those that hear messages, and no other, when they are slow to read."""
    with redis_node.running() as node, Rig(tmp_path, node.url, "palermo", module="shop") as rig:
        rig.enqueue("hold", "it", queue="jobs")
        worker = rig.worker("-c", "2")
        rig.await_lines(1)

        for kind in ("normal", "pubsub", "normal", "pubsub"):
            parked = worker.log.count("job parked, another worker has it")
            node.ask("CLIENT", "KILL", "TYPE", kind)
            eventually(lambda parked=parked: worker.log.count("job parked, another worker has it") > parked)  # type: ignore[misc]
        rig.open_gate()

        eventually(lambda: not any(row["pending"] or row["in_progress"] for row in rig.inspector.queues()))
        assert rig.lines() == ["it begins", "it ends"]
        assert rig.failed() == {}


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


def test_workers_clients_and_the_server_are_killed_under_load_and_every_job_that_was_enqueued_runs(
    tmp_path: Path,
) -> None:
    with redis_node.running() as node, Rig(tmp_path, node.url, "palermo", module="shop") as rig:
        # A job that dies with three workers by chance runs all the same.
        workers = [rig.worker("-c", "2", PALERMO_MAX_DEATHS="none") for _ in range(2)]
        for storm in range(KILLS):
            with enqueuing(rig, f"{storm}") as client:
                go_on(rig)
                node.kill9()
                node.start()
                go_on(rig)
                workers.pop(0).kill9()
                client.kill()
            workers.append(rig.worker("-c", "2", PALERMO_MAX_DEATHS="none"))

        eventually(lambda: not any(row["pending"] or row["in_progress"] for row in rig.inspector.queues()))

        enqueued, ran = rig.lines("enqueued"), rig.lines()
        assert len(enqueued) >= 2 * KILLS * _SOME
        assert set(enqueued) - set(ran) == set()
        assert rig.failed() == {}
        for worker in workers:
            assert not has_traceback(worker.log)


def test_a_replica_takes_over_under_load_and_every_job_that_was_enqueued_runs(tmp_path: Path) -> None:
    """The primary server is killed; the Sentinels have a replica take its place."""
    with (
        redis_node.watched() as watched,
        Rig(tmp_path, f"{watched.url}?wait_replicas=1", "palermo", module="shop") as rig,
        enqueuing(rig, "0") as client,
    ):
        workers = [rig.worker("-c", "2", PALERMO_MAX_DEATHS="none") for _ in range(2)]
        go_on(rig)

        watched.primary.kill9()

        go_on(rig)
        client.kill()
        all_ran(rig, workers)


def test_a_cluster_moves_the_slot_and_loses_the_node_under_load_and_every_job_that_was_enqueued_runs(
    tmp_path: Path,
) -> None:
    with (
        redis_node.cluster() as cluster,
        Rig(tmp_path, f"{cluster.url}?wait_replicas=1", "palermo", module="shop") as rig,
        enqueuing(rig, "0") as client,
    ):
        slot = next(iter(cluster.nodes.values())).ask("CLUSTER KEYSLOT", "palermo:{palermo}:")
        workers = [rig.worker("-c", "2", PALERMO_MAX_DEATHS="none") for _ in range(2)]
        go_on(rig)
        first = cluster.owner(slot)

        cluster.move(slot)

        go_on(rig)
        second = eventually(lambda: owner if (owner := cluster.owner(slot)) is not first else None)
        assert second.ask("EXISTS", "palermo:{palermo}:number") == 1

        second.kill9()
        eventually(lambda: cluster.owner(slot) is not second)
        second.start()  # as a replica: each job must be on one

        go_on(rig)
        client.kill()
        all_ran(rig, workers)


#: How many jobs are enqueued and run between two kills.
_SOME = 100


def all_ran(rig: Rig, workers: list[WorkerProcess]) -> None:
    """Assert that every job that was enqueued has run, and that these workers still live."""
    eventually(lambda: not any(row["pending"] or row["in_progress"] for row in rig.inspector.queues()))
    assert set(rig.lines("enqueued")) - set(rig.lines()) == set()
    assert rig.failed() == {}
    for worker in workers:
        assert worker.alive
        assert not has_traceback(worker.log)


def go_on(rig: Rig) -> None:
    """Wait until jobs are enqueued and run again."""
    rig.await_lines(len(rig.lines("enqueued")) + _SOME, "enqueued")
    rig.await_lines(len(rig.lines()) + _SOME)


@contextmanager
def enqueuing(rig: Rig, name: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A client as a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", _CLIENT, name], env=rig.environment, cwd=rig.path, stdin=subprocess.DEVNULL
    ) as client:
        try:
            yield client
        finally:
            client.kill()
            client.wait(HANGS)


class Keys:
    """The keys of an exchange, as they are."""

    def __init__(self, node: redis_node.RedisNode, exchange: str) -> None:
        self._node = node
        self._prefix = f"palermo:{{{exchange}}}:"

    def jobs(self) -> dict[bytes, str]:
        """The ids of all jobs, by their numbers."""
        numbers, blobs = (self._node.ask(command, self._prefix + "jobs") for command in ("HKEYS", "HVALS"))
        return {number: id_in(blob) for number, blob in zip(numbers, blobs, strict=True)}

    def places(self) -> list[bytes]:
        """The numbers of the jobs in all places in which a job may be."""
        waiting = [key for kind in ("queue:*", "tenant:*", "later") for key in self._like(kind)]
        return [*(number for key in waiting for number in self._all(key)), *self.held()]

    def held(self) -> list[bytes]:
        """The numbers of the jobs that workers hold."""
        return [number for key in self._like("held:*") for number in self._node.ask("HKEYS", key)]

    def holders(self) -> set[str]:
        """The ids of the jobs that have keys."""
        return {member.split(b"\0")[0].decode() for member in self._all(self._prefix + "key-holders")}

    def _like(self, pattern: str) -> list[bytes]:
        return list(self._node.ask("KEYS", self._prefix + pattern))

    def _all(self, key: bytes | str) -> list[bytes]:
        return list(self._node.ask("ZRANGE", key, 0, -1))


async def bury(url: str, exchange: str) -> None:
    """Have the dead give back what they held."""
    broker = await open_broker(SessionParameters(address=parse_url(url), exchange=exchange, timeout=PATIENT))
    assert isinstance(broker, RedisBroker)
    await end_all_leases(broker)
    await broker.close()


def test_R13_a_program_killed_before_any_of_its_commands_leaves_each_job_in_one_place() -> None:
    with redis_node.running() as node:
        command = [sys.executable, "-m", "tests.chaos.redis_life", node.url]
        lives = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        for life in lives:
            exchange, *there = life.split()
            keys = Keys(node, exchange)
            # Each job is in one place, also before its dead worker is buried; and no place has a job that is not there.
            assert sorted(keys.places()) == sorted(keys.jobs()), life
            asyncio.run(bury(node.url, exchange))
            assert sorted(keys.places()) == sorted(keys.jobs()), life
            assert keys.held() == [], life
            assert set(there) <= set(keys.jobs().values()), life
            # A key is taken by a job that is there, and by none that is done.
            assert keys.holders() <= set(keys.jobs().values()), life

    assert len(lives) > 20
    assert lives[-1].split()[1:] == ["a1", "a2", "later"]
