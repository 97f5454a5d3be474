"""Redis and its workers are killed: every job whose enqueue returned runs, and the killed worker's job runs again."""

import asyncio
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from palermo.brokers.redis.broker import RedisBroker
from palermo.brokers.redis.jobs import id_in
from palermo.contract.broker import SessionParameters, open_broker
from palermo.core.address import parse_url
from tests import redis_node
from tests.contract.tools import PATIENT, end_all_leases, places
from tests.harness.processes import WorkerProcess
from tests.harness.rig import Rig
from tests.helpers import eventually, has_traceback
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


def test_a_job_runs_once_whichever_of_its_workers_connections_is_cut(tmp_path: Path) -> None:
    """Redis itself ends those that hear messages, and no other, when they are slow to read."""
    with redis_node.running() as node, Rig(tmp_path, node.url, "palermo", module="shop") as rig:
        rig.enqueue("hold", "it", queue="jobs")
        worker = rig.worker("-c", "2")
        rig.await_lines(1)

        # Four times both, one more than deaths are allowed.
        for kinds in (("normal",), ("pubsub",), *(4 * [("normal", "pubsub")])):
            adopted = worker.log.count("job adopted, another worker runs it")
            for kind in kinds:
                node.ask("CLIENT", "KILL", "TYPE", kind)
            # More than once if the worker was back between the two.
            eventually(lambda adopted=adopted: worker.log.count("job adopted, another worker runs it") > adopted)  # type: ignore[misc]
        rig.open_gate()

        eventually(rig.drained)
        assert rig.lines() == ["it begins", "it ends"]
        assert rig.failed() == {}


def test_all_enqueued_jobs_run_while_workers_clients_and_server_are_killed(tmp_path: Path) -> None:
    with redis_node.running() as node, Rig(tmp_path, node.url, "palermo", module="shop") as rig:
        # A job that dies with three workers by chance runs anyway.
        workers = [rig.worker("-c", "2", PALERMO_MAX_DEATHS="none") for _ in range(2)]
        for storm in range(KILLS):
            client = enqueuing(rig, f"{storm}")
            go_on(rig)
            node.kill9()
            node.start()
            go_on(rig)
            workers.pop(0).kill9()
            client.kill9()
            workers.append(rig.worker("-c", "2", PALERMO_MAX_DEATHS="none"))

        all_ran(rig, workers)
        assert len(rig.lines("enqueued")) >= 2 * KILLS * _SOME


def test_all_enqueued_jobs_run_when_a_replica_takes_over(tmp_path: Path) -> None:
    """The primary server is killed; the Sentinels have a replica take its place."""
    with redis_node.watched() as watched, Rig(tmp_path, f"{watched.url}?wait_replicas=1", module="shop") as rig:
        client = enqueuing(rig, "0")
        workers = [rig.worker("-c", "2", PALERMO_MAX_DEATHS="none") for _ in range(2)]
        go_on(rig)

        watched.primary.kill9()

        go_on(rig)
        client.kill9()
        all_ran(rig, workers)


def test_all_jobs_run_while_a_cluster_moves_the_slot_and_loses_a_node(tmp_path: Path) -> None:
    with redis_node.cluster() as cluster, Rig(tmp_path, f"{cluster.url}?wait_replicas=1", module="shop") as rig:
        client = enqueuing(rig, "0")
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
        client.kill9()
        all_ran(rig, workers)


#: How many jobs are enqueued and run between two kills.
_SOME = 100


def all_ran(rig: Rig, workers: list[WorkerProcess]) -> None:
    """Assert that every job that was enqueued has run, and that these workers still live."""
    eventually(rig.drained)
    assert set(rig.lines("enqueued")) - set(rig.lines()) == set()
    assert rig.failed() == {}
    for worker in workers:
        assert worker.alive
        assert not has_traceback(worker.log)


def enqueuing(rig: Rig, name: str) -> WorkerProcess:
    """A client as a process of its own, which a machine that stands still for some seconds does not end."""
    return rig.launch([sys.executable, "-c", _CLIENT, name], PALERMO_PUBLISH_TIMEOUT="60")


def go_on(rig: Rig) -> None:
    """Wait until jobs are enqueued and run again."""
    rig.await_lines(len(rig.lines("enqueued")) + _SOME, "enqueued")
    rig.await_lines(len(rig.lines()) + _SOME)


async def all_in_place(url: str, exchange: str, there: set[str]) -> None:
    """Assert that each job is in one place, before and after its dead workers have given back what they held."""
    broker = await open_broker(SessionParameters(address=parse_url(url), exchange=exchange, timeout=PATIENT))
    assert isinstance(broker, RedisBroker)
    store = broker._store
    blobs = await store.call("HVALS", store.key("jobs"))
    jobs = {id_in(blob) for blob in blobs}
    assert len(jobs) == len(blobs)
    assert await places(broker) == Counter(jobs), exchange
    await end_all_leases(broker)
    assert await places(broker) == Counter(jobs), exchange
    assert await store.call("KEYS", store.key("held:*")) == [], exchange
    assert there <= jobs, exchange
    # A key is taken by a job that is there, and by none that is done.
    holders = await store.call("ZRANGE", store.key("key-holders"), 0, -1)
    assert {member.split(b"\0")[0].decode() for member in holders} <= jobs, exchange
    await broker.close()


def test_a_kill_before_any_command_leaves_each_job_in_one_place() -> None:
    with redis_node.running() as node:
        command = [sys.executable, "-m", "tests.chaos.redis_life", node.url]
        lives = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        for exchange, *there in map(str.split, lives):
            asyncio.run(all_in_place(node.url, exchange, set(there)))

    assert len(lives) > 20
    assert lives[-1].split()[1:] == ["a1", "a2", "later"]
