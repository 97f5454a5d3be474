"""A queue is made one of another type while publishers and workers go on, and whatever kills who does it."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pika
import pytest
from msgspec.structs import replace
from pika.exceptions import NackError

from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.publishing import declarer
from palermo.client.client import Client
from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.contract.sweep import Keep
from palermo.core.lifecycle import Ack, Release
from palermo.core.message import Message
from palermo.errors import NotBrowsable, NotFound
from palermo.settings.settings import Settings
from tests.chaos.brokers import two_brokers
from tests.contract.tools import counts, message, messages, put_into_failed, until
from tests.contract.workers import consume, take
from tests.harness.rig import COMMAND, Rig
from tests.helpers import eventually

BOTH_WAYS = pytest.mark.parametrize(("before", "after"), [("classic", "quorum"), ("quorum", "classic")])

#: Migrates, and dies by SIGKILL at its n-th question to the server.
KILLED = """
import asyncio, os, signal, sys
from palermo.contract.broker import SessionParameters, open_broker
from palermo.brokers.rabbitmq.amqp.connection import Channel
from palermo.core.address import parse_url
from tests.contract.tools import PATIENT

url, exchange, kind, left = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
call = Channel.call

async def counted(self, *args, **kwargs):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return await call(self, *args, **kwargs)

async def main():
    broker = await open_broker(SessionParameters(address=parse_url(url), exchange=exchange, timeout=PATIENT))
    Channel.call = counted
    await broker.migrate("jobs", kind)

asyncio.run(main())
"""


async def held(broker: Broker, queue: str = "jobs") -> list[str]:
    """The ids in a queue of any type."""
    ids: list[str] = []

    def look(found: Message) -> Keep:
        ids.append(found.id)
        return Keep()

    await broker.sweep(queue, look)
    return ids


async def kind_of(session: SessionParameters, queue: str = "jobs") -> str:
    broker = await open_broker(session)
    try:
        await broker.browse(queue)
    except NotBrowsable:
        return "quorum"
    finally:
        await broker.close()
    return "classic"


@BOTH_WAYS
async def test_nothing_is_lost_or_out_of_order_while_publishers_go_on(
    session: SessionParameters, rabbitmq_url: str, exchange: str, before: str, after: str
) -> None:
    sent: list[str] = []
    over = threading.Event()

    def publish(prefix: str, settings: Settings, *, anew: bool) -> None:
        client = Client(settings)
        while not over.wait(0.02):
            id = f"{prefix}-{len(sent)}"
            client.enqueue("shop.mail.send", (), queue="jobs", id=id)
            sent.append(id)
            if anew:
                client.close()
                client = Client(settings)
        client.close()

    async with two_brokers(replace(session, queue_type=before)) as (broker, _):
        old = [f"jobs-{number}" for number in range(1_000)]
        await broker.publish_many(messages(1_000))
        settings = Settings(url=rabbitmq_url, exchange=exchange, queue_type=after)
        with ThreadPoolExecutor(2) as threads:
            publishing = [threads.submit(publish, name, settings, anew=name == "anew") for name in ("one", "anew")]
            moved = await broker.migrate("jobs", after)
            over.set()
        for thread in publishing:
            thread.result()

        found = Counter(await held(broker))
        assert set(found) == {*old, *sent}
        assert [id for id in found if id.startswith("jobs-")] == old
        # Who makes the new queue before the old one's stand-in is unbound has a job in both, for a moment.
        assert sum(count > 1 for count in found.values()) < max(4, len(sent) / 2)
        assert moved >= 1_000
        assert await kind_of(session) == after
        assert await broker.migrate("jobs", after) == 0
        assert [info.name for info in await broker.queues() if info.paused] == []


@pytest.mark.parametrize(("before", "after", "id"), [("classic", "quorum", None), ("quorum", "classic", "the same")])
async def test_equal_foreign_jobs_are_all_there_after_a_migration(
    session: SessionParameters, rabbitmq_url: str, exchange: str, before: str, after: str, id: str | None
) -> None:
    over = threading.Event()

    def publish() -> int:
        """Publish as another program does; returns how many jobs were confirmed."""
        with pika.BlockingConnection(pika.URLParameters(rabbitmq_url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            confirmed = 0
            while not over.wait(0.002):
                with suppress(NackError):  # RabbitMQ refuses what comes to a quorum queue that it is still making
                    channel.basic_publish(exchange, "jobs", b"[1]", pika.BasicProperties(message_id=id))
                    confirmed += 1
            return confirmed

    async with two_brokers(replace(session, queue_type=before)) as (broker, _):
        await broker.publish_many(messages(100))
        with ThreadPoolExecutor(2) as threads:
            publishing = [threads.submit(publish) for _ in range(2)]
            try:
                await broker.migrate("jobs", after)
            finally:
                over.set()
        confirmed = sum(thread.result() for thread in publishing)

        found = await held(broker)

        assert confirmed > 0
        assert len(found) >= 100 + confirmed


async def test_a_migration_gives_ids_and_keeps_pauses(session: SessionParameters) -> None:
    async with two_brokers(session) as (broker, _):
        await broker.publish(message())
        assert isinstance(broker, RabbitmqBroker)
        channel = await broker._connection.channel()
        for _ in range(2):
            channel.raw.basic_publish(session.exchange, "jobs", b"[1]")
        await until(lambda: counts(broker), (3, 0))
        await broker.pause("jobs", by="me")

        await broker.migrate("jobs", "quorum")
        with pytest.raises(NotFound, match="'nowhere'"):
            await broker.migrate("nowhere", "quorum")

        assert [info.name for info in await broker.queues() if info.paused] == ["jobs"]
        found = await held(broker)
        assert len(set(found)) == 3
        assert sorted(await held(broker)) == sorted(found)


@BOTH_WAYS
async def test_killed_at_any_instant_and_run_again_it_loses_nothing(
    session: SessionParameters, rabbitmq_url: str, exchange: str, before: str, after: str
) -> None:
    kills = (2, 6, 9, 13, 19, 28, 37, 46)

    async with two_brokers(session, within=380) as (broker, publisher):
        await broker.publish_many(messages(250))
        for number, kill in enumerate(kills):
            command = [sys.executable, "-c", KILLED, rabbitmq_url, exchange, after, str(kill)]
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=100, check=False)
            assert done.returncode in (-9, 0), done.stderr
            await publisher.publish(message(f"late-{number}"))

        await broker.migrate("jobs", after)

        found = Counter(await held(broker))
        assert set(found) == {f"jobs-{n}" for n in range(250)} | {f"late-{n}" for n in range(len(kills))}
        assert found.total() - len(found) <= 100 * len(kills)
        assert await kind_of(session) == after
        assert [info.name for info in await broker.queues() if info.paused] == []


async def test_failed_jobs_migrate_under_workers(session: SessionParameters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declarer, "RARELY", 0.0)
    jobs = ["jobs-0", "jobs-1", "jobs-2"]

    async with two_brokers(session) as (broker, worker):
        await put_into_failed(worker, messages(3))
        assert await broker.migrate("failed", "quorum") == 3

        async def unseen() -> int:
            return (await broker.browse("failed")).unseen

        assert await held(broker, "failed") == jobs
        # A quorum queue may count a moment late what a sweep has given back.
        await until(unseen, 0)
        await put_into_failed(worker, [message("late")])
        assert [one.id for one in (await broker.browse("failed")).messages] == [*jobs, "late"]

        await broker.migrate("failed", "classic")
        # A sweep leaves a quorum queue in another order.
        assert sorted(await held(broker, "failed")) == [*jobs, "late"]


@pytest.mark.parametrize(
    ("served", "before", "after"),
    [("jobs", "classic", "quorum"), ("jobs,other", "quorum", "classic"), ("*", "classic", "quorum")],
)
def test_a_running_job_is_waited_for_and_the_worker_goes_on_afterwards(
    rabbitmq_url: str, exchange: str, tmp_path: Path, served: str, before: str, after: str
) -> None:
    with Rig(tmp_path, rabbitmq_url, exchange, queue_type=before, module="shop") as rig:
        worker = rig.worker("-q", served)
        rig.enqueue("hold", "0")
        rig.await_lines(1)
        for number in range(1, 20):
            rig.enqueue("note", f"{number}")
        command = rig.launch([COMMAND, "migrate", "jobs", "--type", after, "--yes"])
        eventually(lambda: any(row["paused"] for row in rig.inspector.queues.list()))
        assert rig.lines() == ["0 begins"]
        assert command.alive
        rig.open_gate()

        assert command.wait() == 0
        assert f"{after} queue, 19 jobs moved" in command.log
        assert rig.await_lines(21) == ["0 begins", "0 ends", *(f"{number}" for number in range(1, 20))]
        assert worker.alive


def test_a_silent_workers_job_outlives_migration_and_worker(rabbitmq_rig: Rig) -> None:
    rig = rabbitmq_rig
    worker = rig.worker("-q", "jobs")
    rig.enqueue("hold", "it")
    rig.await_lines(1)
    worker.send(signal.SIGSTOP)
    command = rig.launch([COMMAND, "migrate", "jobs", "--type", "quorum", "--yes"])
    eventually(lambda: "waiting for a worker that does not answer" in command.log)
    worker.kill9()
    assert command.wait() == 0
    assert "quorum queue, 1 job moved" in command.log
    rig.open_gate()
    rig.burst("-q", "jobs")
    assert rig.lines() == ["it begins", "it begins", "it ends"]


@pytest.mark.parametrize("queues", ["jobs", "jobs,other"])
async def test_a_job_in_a_quorum_queue_may_be_given_back_fifty_times(session: SessionParameters, queues: str) -> None:
    async with two_brokers(replace(session, queue_type="quorum")) as (broker, publisher):
        await publisher.publish_many(messages(2))
        consumer = await consume(broker, queues)

        for _ in range(50):
            delivery = await take(consumer)
            assert delivery.message.id == "jobs-0"
            await consumer.settle(delivery, Release())

        for id in ("jobs-0", "jobs-1"):
            delivery = await take(consumer)
            assert delivery.message.id == id
            await consumer.settle(delivery, Ack())


async def test_a_queue_gets_priorities_and_loses_them_again_with_all_its_jobs(session: SessionParameters) -> None:
    def sent(id: str, priority: int) -> Message:
        return message(id, properties={"priority": priority})

    async def order(broker: Broker) -> list[str]:
        return [one.id for one in (await broker.browse("jobs")).messages]

    async with two_brokers(session) as (broker, publisher):
        await publisher.publish(message("plain"))
        await publisher.publish_many([sent("low", 1), sent("high", 9)])
        assert await order(broker) == ["plain", "low", "high"]

        assert await broker.migrate("jobs", "priority") == 3
        await publisher.publish(sent("middle", 5))
        assert await order(broker) == ["high", "middle", "low", "plain"]
        assert await broker.migrate("jobs", "priority") == 0

        assert await broker.migrate("jobs", "classic") == 4
        assert await order(broker) == ["high", "middle", "low", "plain"]
