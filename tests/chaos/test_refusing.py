"""Queues that refuse what is published to them (overflow reject-publish): no job is lost, and none runs twice."""

import asyncio
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import pika
import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp.connection import open_connection
from palermo.brokers.rabbitmq.leadership.fair_queue import JobsUnderWay
from palermo.brokers.rabbitmq.publishing.job_destinations import delay_queue_name
from palermo.brokers.rabbitmq.publishing.ledger import Ledger
from palermo.brokers.rabbitmq.scheduling import buckets
from palermo.client.client import Client
from palermo.contract.broker import Broker, SessionParameters
from palermo.contract.clock import wall_clock
from palermo.contract.recurring_entries import EntryChange
from palermo.contract.scheduled import ignore_jobs
from palermo.contract.sweep import Move
from palermo.contract.worker_info import WorkerCommand
from palermo.core.address import parse_url
from palermo.core.lifecycle import Ack, Fail, Reschedule, fail, requeue, retry
from palermo.core.message import Message
from palermo.core.topology import amqp_queue
from palermo.core.unique_rules import DEBOUNCE, RERUN
from palermo.errors import PalermoError, PublishRefused
from palermo.settings.settings import Settings
from tests.chaos.brokers import two_brokers
from tests.contract.recurring import entry
from tests.contract.timing import due, listed, time_kept
from tests.contract.tools import FAILURE, PATIENT, ids, message, messages, put_into_failed, queue, until
from tests.contract.unique_jobs import ask, begun, keyed
from tests.contract.workers import Worker, consume, take, take_and_ack
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.rabbitmq_node import Node, clear_policy, set_policy, url_of


class Policies:
    """The policies that a person sets by rabbitmqctl, for one exchange."""

    def __init__(self, node: Node, exchange: str, log: pytest.LogCaptureFixture) -> None:
        self._node = node
        self._exchange = exchange
        self.log = log

    def limit(self, queue: str, most: int, *, with_longer: bool = False) -> None:
        """Let this queue refuse what comes while it holds this many; also those whose names are longer, if asked for.

        It must not hold more when this is set: RabbitMQ drops the first ones then.
        """
        name = amqp_queue(self._exchange, queue)
        pattern = f"^{re.escape(name)}{'' if with_longer else '$'}"
        set_policy(self._node, name, pattern, {"max-length": most, "overflow": "reject-publish"})

    def lift(self, queue: str) -> None:
        """Let it take all again."""
        clear_policy(self._node, amqp_queue(self._exchange, queue))

    async def told(self, text: str = "refuses") -> None:
        """Wait until Palermo says that a queue refuses a job."""
        await asyncio.to_thread(eventually, lambda: text in self.log.text)


@pytest.fixture
def policies(module_node: Node, exchange: str, caplog: pytest.LogCaptureFixture) -> Policies:
    return Policies(module_node, exchange, caplog)


@pytest.fixture
def session(module_node: Node, exchange: str) -> SessionParameters:
    return SessionParameters(address=parse_url(url_of(module_node)), exchange=exchange)


async def ctl(act: Callable[..., None], *arguments: Any) -> None:
    """Set a policy while sessions go on."""
    await asyncio.to_thread(act, *arguments)


async def fill(broker: Broker, count: int) -> None:
    await broker.publish_many(message(f"filler {number}") for number in range(count))


def test_a_job_of_a_tenant_is_kept_when_its_queue_refuses_it(rig: Rig, module_node: Node, policies: Policies) -> None:
    calls = [(f"{number}",) for number in range(40)]
    policies.limit("jobs", 5)
    for tenant in range(3):
        rig.client.enqueue_many([("shop.hold", call, {}) for call in calls[tenant::3]], tenant=f"t{tenant}")

    worker = rig.worker("-c", "4", "-q", "jobs")
    # All slots are busy and the queue is full, with more jobs that the leader would deal.
    eventually(lambda: len(rig.lines()) == 4 and lying(module_node, rig) == 5)
    rig.open_gate()

    def begun() -> list[str]:
        return [note for note in rig.lines() if note.endswith("begins")]

    eventually(lambda: len(begun()) == 40)
    eventually(lambda: rig.pending() == 0)
    assert {note: times for note, times in Counter(begun()).items() if times != 1} == {}
    assert rig.errors() == {}
    assert len([line for line in worker.log.splitlines() if "refuses" in line]) <= 3


def lying(node: Node, rig: Rig) -> int:
    """How many jobs wait in the job queue itself, without those of tenants."""
    with pika.BlockingConnection(pika.URLParameters(url_of(node))) as connection:
        frame = connection.channel().queue_declare(amqp_queue(rig.settings.exchange, "jobs"), passive=True)
        return int(frame.method.message_count)


def test_jobs_stored_before_a_queue_was_full_are_counted(module_node: Node, exchange: str, policies: Policies) -> None:
    policies.limit("jobs", 50)

    with Client(Settings(url=url_of(module_node), exchange=exchange, publish_timeout=PATIENT)) as client:
        with pytest.raises(PublishRefused) as raised:
            client.enqueue_many([("shop.mail", (number,), {}) for number in range(100)])

        assert raised.value.__notes__ == ["50 jobs of this enqueue_many are known to be stored."]
        assert len(client.run(ids)) == 50


async def test_a_refused_tick_fires_once_when_it_is_taken(session: SessionParameters, policies: Policies) -> None:
    async with two_brokers(session) as (broker, leader):
        await fill(broker, 1)
        await ctl(policies.limit, "jobs", 1)
        await broker.change_recurring(EntryChange.put(entry(every=1.0, missed="all")))
        put_at = time.time()
        async with time_kept(leader):
            await policies.told("refuse")
            # A leader that looks for what it has handed over holds the job for that time.
            await until(lambda: ids(broker), ["filler 0"])
            lines = [record for record in policies.log.records if record.levelname in ("WARNING", "ERROR")]
            assert len(lines) <= 2, [record.getMessage() for record in lines]
            consumer = await consume(broker)
            await take_and_ack(consumer)
            ticks = [tick(await take_and_ack(consumer)) for _ in range(8)]

        # One that the queue refuses may come after the next.
        first = min(ticks)
        assert set(ticks) >= {first + number for number in range(6)}
        assert len(set(ticks)) == len(ticks)
        assert first <= put_at + 1.0


async def test_a_tick_fires_once_when_its_next_state_is_refused(session: SessionParameters, policies: Policies) -> None:
    async with two_brokers(session) as (broker, leader):
        async with time_kept(leader):
            await broker.change_recurring(EntryChange.put(entry(every=1.0, missed="all")))
            consumer = await consume(broker)
            ticks = [tick(await take_and_ack(consumer))]
            await ctl(policies.limit, "~recurring", 0)
            while "refuse" not in policies.log.text:
                with suppress(TimeoutError):
                    delivery = await take(consumer, within=0.5)
                    await consumer.settle(delivery, Ack())
                    ticks.append(tick(delivery.message))
            await ctl(policies.lift, "~recurring")
            ticks += [tick(await take_and_ack(consumer)) for _ in range(4)]

        assert ticks == [ticks[0] + number for number in range(len(ticks))]


def tick(job: Message) -> float:
    return float(str(job.extra["tick"]))


async def test_a_delayed_job_that_its_queue_refuses_comes_later(session: SessionParameters, policies: Policies) -> None:
    async with two_brokers(session) as (broker, leader):
        await fill(broker, 1)
        await ctl(policies.limit, "jobs", 1)
        async with time_kept(leader):
            await broker.publish_many([due(f"late {number}", 1.0) for number in range(5)])
            await policies.told()
            assert await ids(broker) == ["filler 0"]
            # Other jobs reach their queues meanwhile, and the leader answers questions.
            await broker.publish(message("before", "other"))
            await broker.publish(due("other", 0.5, queue="other"))
            await until(lambda: ids(broker, "other"), ["before", "other"])
            await broker.change_recurring(EntryChange.put(entry(every=3_600.0)))
            assert [one.name for one in await broker.recurring()] == ["sweep"]
            consumer = await consume(broker)
            found = [(await take_and_ack(consumer)).id for _ in range(6)]

        assert found[0] == "filler 0"
        assert sorted(found[1:]) == [f"late {number}" for number in range(5)]


async def test_a_refused_job_behind_a_unique_one_is_kept(session: SessionParameters, policies: Policies) -> None:
    async with two_brokers(session) as (broker, leader):
        async with time_kept(leader):
            await ask(broker, keyed("first"))
            consumer = await consume(leader)
            running = await begun(consumer)
            await fill(broker, 1)
            await ctl(policies.limit, "jobs", 1)
            assert (await ask(broker, keyed("next"), on_duplicate=RERUN)).outcome == "next"
            await ask(broker, keyed("burst", key="b"), key="b", spread=DEBOUNCE, seconds=1.0)
            await consumer.settle(running, Ack())
            await policies.told()
            # Keys of other queues are decided about meanwhile.
            await ask(broker, keyed("other", key="o", queue="other"), key="o")
            assert await ids(broker, "other") == ["other"]
            found = []
            for _ in range(3):
                delivery = await begun(consumer)
                found.append(delivery.message.id)
                await consumer.settle(delivery, Ack())

        assert sorted(found) == ["burst", "filler 0", "next"]


@pytest.mark.parametrize("how", ["retry", "fail"])
async def test_a_job_whose_end_is_refused_stays(session: SessionParameters, policies: Policies, how: str) -> None:
    async with two_brokers(session) as (broker, leader), time_kept(leader):
        await put_into_failed(broker, [message("full")])
        await broker.publish_many(messages(2))
        consumer = await consume(leader)
        delivery = await take(consumer)
        await ctl(policies.limit, "jobs" if how == "retry" else "failed", 1)
        worker, now = "pid:1@h/worker-1", wall_clock()  # due at once by every clock
        settlement: Reschedule | Fail = Fail(fail(delivery.message, FAILURE, worker=worker))
        if how == "retry":
            settlement = Reschedule(retry(delivery.message, FAILURE, worker=worker, now=now, delay=0.0))

        with pytest.raises(PublishRefused):
            await consumer.settle(delivery, settlement)
        await consumer.close()

        await until(lambda: ids(broker), ["jobs-0", "jobs-1"])
        assert await ids(broker, "failed") == ["full"]


@pytest.mark.parametrize(("source", "target"), [("failed", "jobs"), ("jobs", "mail")])
async def test_jobs_stay_where_they_are_when_the_queue_they_move_to_is_full(
    session: SessionParameters, policies: Policies, source: str, target: str
) -> None:
    async with two_brokers(session) as (broker, other):
        if source == "failed":
            await put_into_failed(broker, messages(20))
        else:
            await broker.publish_many(messages(20))
        await other.publish(message("filler", target))
        await ctl(policies.limit, target, 6)

        done: list[str] = []

        def move(found: Message) -> Move:
            moved = requeue(found) if source == "failed" else replace(found, queue=target)
            return Move(moved, partial(done.append, found.id))

        with pytest.raises(PalermoError):
            await broker.sweep(source, move)

        assert done == []
        wanted = {f"jobs-{number}" for number in range(20)}
        await until(lambda: everywhere(broker, source, target), wanted | {"filler"})
        await ctl(policies.lift, target)
        await broker.sweep(source, move)
        assert await ids(broker, source) == []
        assert set(await ids(broker, target)) == wanted | {"filler"}


async def everywhere(broker: Broker, *queues: str) -> set[str]:
    return {id for queue in queues for id in await ids(broker, queue)}


async def test_a_migration_into_a_full_queue_loses_no_job(session: SessionParameters, policies: Policies) -> None:
    async with two_brokers(replace(session, queue_type="quorum")) as (broker, other):
        await broker.publish_many(messages(20))
        await ctl(policies.limit, "~migrating.jobs", 5)
        migrating = asyncio.ensure_future(broker.migrate("jobs", "classic"))
        await policies.told()
        assert not migrating.done()
        await ctl(policies.lift, "~migrating.jobs")
        assert await migrating == 20
        found: list[str] = []
        consumer = await consume(other)
        while len(found) < 20:
            found.append((await take_and_ack(consumer)).id)
        assert found == [f"jobs-{number}" for number in range(20)]


@pytest.mark.parametrize("queues", ["jobs", "jobs,low"])
def test_good_jobs_run_and_failed_ones_run_once_while_failed_is_full(rig: Rig, policies: Policies, queues: str) -> None:
    fill_failed(rig, policies)
    bad = [rig.enqueue("fail", f"{number}") for number in range(20)]
    good = [f"good {number}" for number in range(20)]
    for text in good:
        rig.enqueue("note", text)

    worker = rig.worker("-c", "24", "-q", queues, "--log-level", "debug")

    eventually(lambda: sorted(rig.lines()) == sorted(good))
    eventually(lambda: worker.log.count("ERROR job failed") == 20)
    eventually(lambda: "queue refuses jobs or results" in worker.log)
    # Not looked into: what is held for a look leaves room.
    assert rig.inspector.queues.size("failed") == 1
    policies.lift("failed")
    eventually(lambda: set(bad) <= set(rig.errors()))
    eventually(lambda: rig.pending() == 0)
    assert len(rig.errors()) == 21
    assert rig.inspector.queues.size("failed") == 21
    assert worker.log.count("job started") == 40
    errors = [line for line in worker.log.splitlines() if " ERROR " in line and "job failed" not in line]
    assert len(errors) in (1, 2)
    rig.enqueue("note", "last")
    eventually(lambda: "last" in rig.lines())


def test_a_worker_that_stops_while_failed_is_full_gives_its_jobs_back(rig: Rig, policies: Policies) -> None:
    fill_failed(rig, policies)
    bad = [rig.enqueue("fail", f"{number}") for number in range(6)]
    worker = rig.worker("-c", "2", "-q", "jobs")
    eventually(lambda: worker.log.count("ERROR job failed") == 2)
    eventually(lambda: "queue refuses jobs or results" in worker.log)

    worker.send(signal.SIGTERM)

    assert worker.wait() == 0
    eventually(lambda: sorted(row["id"] for row in rig.inspector.jobs.list("jobs", limit=100)) == sorted(bad))


def fill_failed(rig: Rig, policies: Policies) -> None:
    """Have a failed job, and no room for another."""
    rig.enqueue("fail", "the first")
    rig.burst("-q", "jobs")
    eventually(lambda: len(rig.errors()) == 1)
    policies.limit("failed", 1)


def dying(monkeypatch: pytest.MonkeyPatch, part: type, step: str) -> asyncio.Event:
    """Has the leader's connection end before the first of these steps; set once that has happened."""
    go_on, died = getattr(part, step), asyncio.Event()

    def dies(self: Any, *args: Any) -> Any:
        if not died.is_set():
            died.set()
            self._connection.raw.abort()
        return go_on(self, *args)

    monkeypatch.setattr(part, step, dies)
    return died


@pytest.mark.parametrize("taken", [False, True], ids=["waiting", "taken"])
async def test_a_tick_fires_once_though_a_leader_dies_before_it_says_so(
    session: SessionParameters, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    died = dying(monkeypatch, Ledger, "_record_stored")

    async with two_brokers(session) as (broker, leader):
        ran = Ran()
        await broker.change_recurring(EntryChange.put(entry(every=1.0, missed="all")))
        consumer = await consume(broker, on_command=ran.obey) if taken else None
        keeping = asyncio.ensure_future(leader.run_scheduler(ignore_jobs))
        await died.wait()
        if consumer is None:
            await until(lambda: four_wait(broker), True)
            ran.ids = await ids(broker)
        else:
            for _ in range(5):
                await ran.take(consumer)
        keeping.cancel()

        assert len(ran.ids) >= 4
        assert {id: times for id, times in Counter(ran.ids).items() if times != 1} == {}


@pytest.mark.parametrize("taken", [False, True], ids=["waiting", "taken"])
async def test_a_job_of_a_tenant_is_kept_though_a_leader_dies_before_its_ack(
    session: SessionParameters, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    died = dying(monkeypatch, JobsUnderWay, "_on_answer")

    async with two_brokers(session) as (broker, leader):
        ran = Ran()
        await broker.publish_many([message(f"{number}", tenant="ab"[number % 2]) for number in range(12)])
        consumer = await consume(broker, on_command=ran.obey) if taken else None
        keeping = asyncio.ensure_future(leader.run_scheduler(ignore_jobs))
        await died.wait()
        if consumer is None:
            consumer = await consume(broker, on_command=ran.obey)
        while set(ran.ids) != {f"{number}" for number in range(12)}:
            await ran.take(consumer)
        keeping.cancel()

        assert max(Counter(ran.ids).values()) <= 2


async def four_wait(broker: Broker) -> bool:
    # Counted and not looked at: a leader does not find the jobs that a look holds.
    found = await queue(broker)
    return found is not None and found.pending >= 4


class Ran:
    """What a worker remembers of the jobs that it ran."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    async def obey(self, order: WorkerCommand) -> Mapping[str, Any] | None:
        return {"known": [id for id in order.ids or () if id in self.ids]}

    async def take(self, consumer: Worker) -> None:
        delivery = await take(consumer)
        self.ids.append(delivery.message.id)
        await consumer.settle(delivery, Ack())


# -- jobs that are due later and are refused where they would wait


@pytest.mark.parametrize(("full", "most"), [("a bucket", 2), ("the list of buckets", 0)])
async def test_far_jobs_are_not_doubled_when_some_are_refused(
    session: SessionParameters, policies: Policies, full: str, most: int
) -> None:
    day = int(time.time() // 86_400) + 3
    queue = f"~later.day.{day}" if full == "a bucket" else "~later"
    jobs = [message(f"{number}", run_at=(day + number % 2) * 86_400.0 + number) for number in range(10)]
    await ctl(policies.limit, queue, most)
    async with two_brokers(session) as (broker, leader), time_kept(leader):
        await broker.publish_many(jobs)
        await policies.told("refuses delayed jobs")
        await until(lambda: listed(broker), [job.id for job in sorted(jobs, key=lambda job: job.run_at or 0)])
        await ctl(policies.lift, queue)
        await until(lambda: counts_of(session, day, day + 1), [5, 5])


async def test_far_jobs_that_a_bucket_refuses_hold_up_no_others(session: SessionParameters, policies: Policies) -> None:
    day = int(time.time() // 86_400) + 3
    jobs = [message(f"{number}", run_at=day * 86_400.0 + number) for number in range(buckets._TURN + 50)]
    await ctl(policies.limit, f"~later.day.{day}", 0)
    async with two_brokers(session) as (broker, leader), time_kept(leader):
        await broker.publish_many([*jobs, message("behind", run_at=(day + 1) * 86_400.0)])
        await until(lambda: counts_of(session, day, day + 1), [0, 1])
        await ctl(policies.lift, f"~later.day.{day}")
        await until(lambda: counts_of(session, day, day + 1), [len(jobs), 1])


async def counts_of(session: SessionParameters, *days: int) -> list[int]:
    """How many jobs wait in the buckets of these days."""
    connection = await open_connection(session, "test")
    try:
        probes = [await connection.probe(delay_queue_name(session.exchange, f"day.{day}")) for day in days]
    finally:
        await connection.close()
    return [probe.messages if probe.exists else 0 for probe in probes]


@pytest.mark.parametrize("queues", ["jobs", "jobs,low"])
def test_a_refused_foreign_delayed_job_ends_no_session(rig: Rig, policies: Policies, queues: str) -> None:
    policies.limit("~later", 0, with_longer=True)
    worker = rig.worker("-c", "2", "-q", queues)
    eventually(lambda: worker.log.count("connected broker") == 1)

    for number in range(5):
        # As another program does it, straight into the job queue.
        headers = {"job-class": "shop.note", "id": f"later {number}", "perform_job_at": int(time.time()) + 600}
        rig.put("jobs", b"[]", delivery_mode=2, headers=headers)
    for number in range(10):
        rig.enqueue("note", f"{number}")

    eventually(lambda: len(rig.lines()) == 10)
    eventually(lambda: "refuses jobs that are not due yet" in worker.log)
    rig.enqueue("note", "late")
    eventually(lambda: "late" in rig.lines())
    assert "connection lost" not in worker.log
    assert worker.log.count("refuses jobs that are not due yet") == 1
    assert not rig.inspector.scheduled.list()
    policies.lift("~later")
    eventually(lambda: len(rig.inspector.scheduled.list()) == 5)
    eventually(lambda: rig.inspector.queues.size("jobs") == 0)
    assert worker.log.count("connected broker") == 1
