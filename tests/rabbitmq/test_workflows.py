"""Leaders of workflows, who read the ends of steps that workers write, and of tenants, who leave nothing when idle."""

import asyncio
import json
import random
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any

import msgspec
import pika
import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq import diagnosis
from palermo.brokers.rabbitmq.amqp.alarms import confirmed
from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.amqp.many_queues import probe_all
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT_JSON
from palermo.brokers.rabbitmq.amqp.state_log import Record, StateLog
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.brokers.rabbitmq.browsing.sweep import Reader
from palermo.brokers.rabbitmq.journal import StreamJournal
from palermo.brokers.rabbitmq.leadership import fair_scheduler
from palermo.brokers.rabbitmq.leadership.fair_queue import FairQueue, TenantState
from palermo.brokers.rabbitmq.leadership.operations import HasTenantJobs
from palermo.brokers.rabbitmq.publishing import end_writer, job_destinations
from palermo.brokers.rabbitmq.publishing.job_destinations import TenantQueue, tenant_queue_name
from palermo.brokers.rabbitmq.publishing.ledger import Ledger
from palermo.brokers.rabbitmq.unique import orphaned_keys
from palermo.brokers.rabbitmq.workflows import leader_workflows, lost_steps
from palermo.brokers.rabbitmq.workflows.step_reports import RunEnd, StepReport, record_of, workflow_queue
from palermo.contract.broker import Broker, Delivery, SessionParameters
from palermo.contract.sweep import Move
from palermo.contract.worker_info import WorkerCommand
from palermo.core.lifecycle import Ack, Reschedule, StoredResult
from palermo.core.message import Message
from palermo.core.step_values import pack
from palermo.core.topology import amqp_queue
from palermo.core.workflow import AddedStep, Graph, Member, StepJob, step_of
from palermo.core.workflow_rules import Condition, How, Plan
from palermo.errors import BrokerUnavailable, PalermoError
from tests.contract.timing import time_kept
from tests.contract.tools import ids, message, messages, until
from tests.contract.unique_jobs import ask, keyed, stray_ids
from tests.contract.workers import Report, Worker, consume, nothing_for, take, take_and_ack
from tests.helpers import eventually
from tests.rabbitmq.conftest import Open, becomes, ids_in, on_both_kinds, too_large
from tests.scale import scaled

#: What a run adds: one step.
GRAPH = Graph(steps=(AddedStep(Plan(name="one"), StepJob.of(message("one"))),))
ADDS = pack(GRAPH)


async def begin(broker: RabbitmqBroker, consumer: Worker, id: str, adds: bytes = ADDS) -> Delivery:
    """Begin a workflow of one step, and take that."""
    await broker.publish(message(id))
    await consumer.settle(await take(consumer), Ack(adds=adds))
    step = await take(consumer)
    assert step.message.id == f"{id}/one"
    return step


async def leave(broker: RabbitmqBroker, id: str, adds: bytes = ADDS) -> None:
    """Begin a workflow, and leave its steps in their queues."""
    consumer = await consume(broker, report=Report("jobs", pid=2))
    await broker.publish(message(id))
    await consumer.settle(await take(consumer), Ack(adds=adds))
    await consumer.close()


async def run(broker: RabbitmqBroker, consumer: Worker, id: str) -> None:
    """Run a workflow of one step."""
    await consumer.settle(await begin(broker, consumer, id), Ack())


async def left(broker: RabbitmqBroker) -> list[str]:
    """The ids of the workflows that are not over."""
    return [found.id for found in await broker.workflows.all()]


async def test_an_end_waits_until_the_journal_can_be_written(
    broker: RabbitmqBroker, another: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, errors = StreamJournal.append, [BrokerUnavailable("no journal")] * 3

    async def failing(journal: StreamJournal, batch: bytes) -> None:
        if errors:
            raise errors.pop()
        await append(journal, batch)

    monkeypatch.setattr(StreamJournal, "append", failing)
    async with time_kept(broker):
        consumer = await consume(await another())
        await run(broker, consumer, "a")

        await until(lambda: left(broker), [])
    assert errors == []


async def test_an_end_that_cannot_be_read_is_passed_over(
    broker: RabbitmqBroker, another: Open, session: SessionParameters
) -> None:
    queue = workflow_queue(session.exchange)
    async with time_kept(broker):
        consumer = await consume(await another())
        await run(broker, consumer, "before")
        step = await begin(broker, consumer, "a")
        publisher = await broker._outbox.open()
        for adds in (b"", b"\xc1", ADDS[:-1]):
            report = StepReport(message=message("junk"), adds=b64encode(adds).decode())
            await publisher.send("", queue, PERSISTENT_JSON, json.dumps(report.to_record()).encode())
        for path in ("one:x", "one:" + "9" * 5_000):  # members without a number
            end = RunEnd.of(("a", path, 0), How.DONE, None)
            await publisher.send("", queue, PERSISTENT_JSON, record_of([msgspec.json.encode(end)]))
        await consumer.settle(step, Ack())
        await run(broker, consumer, "after")

        await until(lambda: left(broker), [])
        assert broker._connection.unreadable.counts == {queue: 3}


async def test_a_job_that_runs_is_ordered_to_end_at_the_deadline(broker: RabbitmqBroker, another: Open) -> None:
    orders: list[tuple[str, str, str]] = []

    async def obey(order: WorkerCommand) -> None:
        orders.append((order.action, order.id, order.by))

    async with time_kept(broker):
        consumer = await consume(await another(), on_command=obey)
        step = await begin(broker, consumer, "a", pack(replace(GRAPH, deadline=0.2)))
        await becomes(lambda: orders, [("cancel", "a/one", "deadline")])
        await consumer.settle(step, Ack(done=False, cancelled=True))

        await until(lambda: left(broker), [])


async def test_a_step_that_cannot_be_stored_for_a_retry_fails(
    broker: RabbitmqBroker, another: Open, small: dict[str, Any]
) -> None:
    async with time_kept(broker):
        consumer = await consume(await another(**small))
        step = await begin(broker, consumer, "a")
        large = replace(step.message, extra={**step.message.extra, "note": "n" * 20_000})

        await consumer.settle(step, Reschedule(large))

        async def state() -> str | None:
            found = await broker.workflows.find("a")
            return None if found is None else found.steps["one"].state

        await until(state, "failed")
    assert await ids(broker, "failed") == ["a/one"]


@pytest.mark.parametrize("queues", ["jobs", "jobs,other"])
async def test_a_slot_goes_on_after_an_end_that_was_not_confirmed(
    broker: RabbitmqBroker, another: Open, monkeypatch: pytest.MonkeyPatch, queues: str
) -> None:
    async def late(sent: Awaitable[None], *_: object, **__: object) -> None:
        await sent
        monkeypatch.setattr(end_writer, "confirmed", confirmed)
        raise BrokerUnavailable("not confirmed in time")

    async with time_kept(broker):
        consumer = await consume(await another(), queues)
        step = await begin(broker, consumer, "a")
        monkeypatch.setattr(end_writer, "confirmed", late)
        await consumer.settle(step, Ack())
        waiting = {"b", "c"}
        await broker.publish_many([message(id) for id in waiting])

        while waiting:
            waiting.discard((await take_and_ack(consumer)).id)  # the step may run again
        await until(lambda: left(broker), [])


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the leader look for lost steps all the time."""
    monkeypatch.setattr(lost_steps, "LOOK_EVERY", 0.2)


@pytest.mark.slow
@pytest.mark.usefixtures("watched")
@on_both_kinds
async def test_a_step_that_another_program_purges_runs_again_once(
    broker: RabbitmqBroker, another: Open, channel: Any, session: SessionParameters
) -> None:
    job = StepJob.of(message("x"))
    steps = AddedStep(Plan(name="one"), job), AddedStep(Plan(name="many", members=3), job, (Member(b"[2]"),) * 3)
    wanted = ["a/many:0", "a/many:1", "a/many:2", "a/one"]

    async with time_kept(await another()):
        await leave(broker, "a", pack(Graph(steps=steps)))
        for _ in range(2):
            await until(lambda: ids_in(broker), wanted)
            channel.queue_purge(amqp_queue(session.exchange, "jobs"))
        await until(lambda: ids_in(broker, "failed"), wanted)
        (found,) = await broker.workflows.all()
        assert (found.state, found.failed) == ("failed", 4)

        await broker.sweep("failed", lambda found: Move(replace(found, queue="jobs")))
        consumer = await consume(await another())
        assert sorted([(await take_and_ack(consumer)).id for _ in wanted]) == wanted
        await until(lambda: left(broker), [])


@pytest.mark.usefixtures("watched")
async def test_a_step_that_waits_elsewhere_is_not_lost(broker: RabbitmqBroker, another: Open) -> None:
    async with time_kept(await another()):
        consumer = await consume(await another())
        step = await begin(broker, consumer, "a")
        await asyncio.sleep(1)
        later = replace(step.message, run_at=time.time() + 3)
        await consumer.settle(step, Reschedule(later))

        assert (await take_and_ack(consumer)).run_at == later.run_at
        await until(lambda: left(broker), [])
        await nothing_for(consumer)


@pytest.mark.usefixtures("watched")
async def test_a_step_that_was_moved_to_another_queue_is_not_lost(broker: RabbitmqBroker, another: Open) -> None:
    async with time_kept(await another()):
        await leave(broker, "a")
        await until(lambda: ids_in(broker), ["a/one"])
        await broker.sweep("jobs", lambda found: Move(replace(found, queue="slow")))

        await asyncio.sleep(1.5)

        assert (await ids_in(broker, "slow"), await ids_in(broker)) == (["a/one"], [])


@pytest.mark.usefixtures("watched")
async def test_a_step_that_another_programs_worker_runs_is_not_lost(
    broker: RabbitmqBroker, another: Open, channel: Any, session: SessionParameters
) -> None:
    graph = Graph(steps=(AddedStep(Plan(name="one"), StepJob.of(message("x", "php"))),))
    taken: list[str] = []
    async with time_kept(await another()):
        await leave(broker, "a", pack(graph))
        await until(lambda: ids_in(broker, "php"), ["a/one"])
        channel.basic_consume(amqp_queue(session.exchange, "php"), lambda *got: taken.append(got[2].message_id))
        channel.connection.process_data_events(1)

        await asyncio.sleep(1.5)

        channel.connection.process_data_events(1)
        assert taken == ["a/one"]


async def test_a_step_whose_end_is_stored_does_not_run_again(broker: RabbitmqBroker, another: Open) -> None:
    signal = AddedStep(Plan(name="waits", signal=True))
    async with time_kept(broker):
        consumer = await consume(await another())
        step = await begin(broker, consumer, "a", pack(replace(GRAPH, steps=(*GRAPH.steps, signal))))
        await (await broker.workflows.send_end(step.message, How.DONE))
        await consumer.close()
        consumer = await consume(await another())

        await nothing_for(consumer, within=1)

        await broker.workflows.signal("a", "waits", StoredResult("application/json", b"1"))
        await until(lambda: left(broker), [])


async def test_the_doctor_warns_of_workflows_that_take_much_memory(
    broker: RabbitmqBroker, another: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def found() -> list[str]:
        return [one.level for one in await broker.diagnose() if one.check == "workflows"]

    async with time_kept(broker):
        await begin(broker, await consume(await another()), "a")
    assert await found() == []

    monkeypatch.setattr(diagnosis, "_MUCH", 10)
    assert await found() == ["warning"]


async def test_deleting_a_queue_cancels_the_steps_that_wait_in_it(broker: RabbitmqBroker, another: Open) -> None:
    async with time_kept(await another()):
        consumer = await consume(await another())
        step = await begin(broker, consumer, "running")
        await leave(broker, "waiting")
        await until(lambda: ids_in(broker), ["waiting/one"])

        await broker.delete("jobs")

        assert await left(broker) == ["running"]
        await consumer.settle(step, Ack())
        await until(lambda: left(broker), [])


class Killing:
    """Cuts the leader's connection before one of the effects of its work on workflows, the first one being 1."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, queue: str) -> None:
        #: The effects until the leader dies.
        self.left = 0
        append, publish, write = StateLog.append, Ledger._publish, StreamJournal.append

        async def appending(log: StateLog, *records: Any) -> list[Record]:
            if log._queue == queue:
                self._effect(log._connection)
            return await append(log, *records)

        async def publishing(ledger: Ledger[Any], jobs: Sequence[Message]) -> dict[str, PalermoError]:
            if ledger._table.queue == queue:
                self._effect(ledger._connection)
            return await publish(ledger, jobs)

        async def writing(journal: StreamJournal, batch: bytes) -> None:
            self._effect(journal._connection)
            await write(journal, batch)

        monkeypatch.setattr(StateLog, "append", appending)
        monkeypatch.setattr(Ledger, "_publish", publishing)
        monkeypatch.setattr(StreamJournal, "append", writing)

    def _effect(self, connection: Connection) -> None:
        self.left -= 1
        if self.left == 0:
            connection.raw.abort()
            raise BrokerUnavailable("killed")


@pytest.mark.slow
async def test_a_leader_killed_before_any_effect_loses_no_step(
    broker: RabbitmqBroker, another: Open, session: SessionParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = StepJob.of(message("x"), output=True)
    steps = AddedStep(Plan(name="one"), job), AddedStep(Plan(name="two", after=(Condition(("one",)),)), job)
    killing, found = Killing(monkeypatch, workflow_queue(session.exchange)), Counter[str]()
    monkeypatch.setattr(leader_workflows, "_PART_BYTES", 1)  # each part is committed by itself
    async with time_kept(broker):
        consumer = await consume(await another())

        async def work() -> None:
            while True:
                step = await take(consumer)
                found[step.message.id] += 1
                first = not step_of(step.message.extra)
                output = StoredResult("application/json", b"1")
                await consumer.settle(step, Ack(adds=pack(Graph(steps=steps))) if first else Ack(output=output))

        working = asyncio.ensure_future(work())
        await broker.publish(message("0"))
        await until(lambda: found.keys(), {"0", "0/one", "0/two"})
        await until(lambda: left(broker), [])
        for number in count(1):
            killing.left = number
            await broker.publish(message(f"{number}"))
            await until(lambda id=f"{number}": found[f"{id}/two"] > 0, True)
            await until(lambda: left(broker), [])
            if killing.left > 0:
                break
        working.cancel()

    assert number > 10
    assert set(found) == {f"{id}{path}" for id in range(number + 1) for path in ("", "/one", "/two")}
    # A job that has ended by the time that the next leader looks for it is published again.
    assert max(found.values()) <= 2


Probe = Callable[[], Awaitable[Any]]


def own_queue(exchange: str, tenant: str) -> str:
    return tenant_queue_name(exchange, TenantQueue("jobs", tenant))


@pytest.fixture
def there(session: SessionParameters, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> Probe:
    """Whether the queue of tenant a is there. The leader soon deletes it while it is idle."""
    monkeypatch.setattr(fair_scheduler, "LINGER", 0.1)

    async def is_it_there() -> bool:
        return (await connection.probe(own_queue(session.exchange, "a"))).exists

    return is_it_there


async def test_a_tenants_large_job_fails_alone(broker: RabbitmqBroker, another: Open, small: dict[str, Any]) -> None:
    worker = await another(**small)
    await broker.publish(message("large", tenant="a", extra={"note": "n" * 20_000}))
    await broker.publish(message("small", tenant="a"))
    async with time_kept(worker):
        assert (await take_and_ack(await consume(worker))).id == "small"
        assert (await too_large(broker, "large")).tenant == "a"


async def test_an_idle_tenant_leaves_no_trace_and_returns(broker: RabbitmqBroker, another: Open, there: Probe) -> None:
    async with time_kept(worker := await another()):
        consumer = await consume(worker)
        for number in range(3):
            # The publisher was there a moment ago, and takes it that the tenant's queue still is.
            await broker.publish_many([message(f"{number}", tenant="a")])
            assert (await take_and_ack(consumer)).id == f"{number}"
            await until(there, False)


@pytest.mark.slow
async def test_a_job_is_not_lost_as_its_tenants_queue_goes(another: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """RabbitMQ confirms what is on its way into a queue that is just being deleted, and drops it."""
    monkeypatch.setattr(fair_scheduler, "LINGER", 0.1)
    monkeypatch.setattr(fair_scheduler, "_LOOK_EVERY", 0.02)
    monkeypatch.setattr(job_destinations, "_TRUSTED", 0.05)
    until = time.monotonic() + scaled(3, 120)
    stored, taken = set[str](), set[str]()

    async def publish(broker: Broker, tenant: str) -> None:
        chance, number = random.Random(tenant), 0
        while time.monotonic() < until:
            # About as long as a queue is left empty.
            await asyncio.sleep(chance.uniform(0.08, 0.2))
            some = [message(f"{tenant}-{number + n}", tenant=tenant) for n in range(5)]
            number += len(some)
            await broker.publish_many(some)
            stored.update(job.id for job in some)

    async def take_all(consumer: Worker) -> None:
        while True:
            taken.add((await take_and_ack(consumer)).id)

    worker, *publishers = [await another() for _ in range(5)]
    async with time_kept(worker):
        taking = asyncio.ensure_future(take_all(await consume(worker)))
        await asyncio.gather(*(publish(one, f"{n}.{m}") for n, one in enumerate(publishers) for m in range(5)))
        await asyncio.to_thread(eventually, lambda: taken >= stored)
        taking.cancel()


async def test_other_programs_enqueue_for_a_tenant(session: SessionParameters, another: Open, channel: Any) -> None:
    name, tenants = own_queue(session.exchange, "ü"), f"{session.exchange}.~tenants"
    for queue in (name, tenants):
        channel.queue_declare(queue, durable=True)
    record = json.dumps({"made": ["jobs", "ü"]}).encode()
    channel.basic_publish("", tenants, record, pika.BasicProperties(delivery_mode=2), mandatory=True)
    headers = {"job-class": "shop.mail", "tenant": "ü", "queue": "jobs"}
    properties = pika.BasicProperties(delivery_mode=2, message_id="theirs", headers=headers)
    channel.basic_publish("", name, b"[1]", properties, mandatory=True)

    async with time_kept(worker := await another()):
        found = await take_and_ack(await consume(worker))
        assert (found.id, found.tenant, found.body) == ("theirs", "ü", b"[1]")


async def test_a_queue_gone_as_the_leader_listens_holds_up_no_other_tenant(
    broker: RabbitmqBroker, another: Open, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen, deleted = FairQueue._listen, list[str]()

    def listen_too_late(self: FairQueue, listening: Channel, state: TenantState) -> None:
        if state.name == "a" and not deleted:
            deleted.append(state.queue)
            channel.queue_delete(state.queue)
        listen(self, listening, state)

    monkeypatch.setattr(FairQueue, "_listen", listen_too_late)
    jobs = [message(f"b-{number}", tenant="b") for number in range(9)]
    await broker.publish_many([message("a", tenant="a"), *jobs])

    async with time_kept(worker := await another()):
        consumer, left = await consume(worker), {job.id for job in jobs}
        while left:
            left.discard((await take_and_ack(consumer)).id)
        await broker.publish(message("again", tenant="a"))
        assert (await take_and_ack(consumer)).id == "again"
    assert deleted


async def test_queues_that_are_read_together_are_held_one_by_one(
    broker: RabbitmqBroker, connection: Connection, channel: Any
) -> None:
    exchange = broker._exchange
    await broker.publish_many([message("plain"), message("of a", tenant="a"), message("of b", tenant="b")])
    reader = Reader(connection, exchange, "jobs", only_look=True)
    reader.add(own_queue(exchange, name) for name in ("a", "gone", "b"))
    total, seen, held = await reader.count_all(), list[str](), list[int]()
    async for _, page in reader.pages(total):
        seen += (str(got.id) for got in page)
        probes = await probe_all(connection, [amqp_queue(exchange, "jobs"), own_queue(exchange, "a")])
        held.append(sum(not probe.ready for probe in probes.values()))
    await reader.close()

    assert (total, seen, held) == (3, ["plain", "of a", "of b"], [1, 1, 0])
    assert await reader.count() == 3


async def test_a_deleted_queue_is_not_made_again_for_its_idle_tenants(
    broker: RabbitmqBroker, another: Open, connection: Connection
) -> None:
    async with time_kept(await another()):
        await broker.publish_many([message(f"{number}", tenant="a") for number in range(9)])
        assert await broker.delete("jobs") == 9
        await asyncio.sleep(0.3)
        assert not (await connection.probe(amqp_queue(broker._exchange, "jobs"))).exists
        await broker.publish(message("again", tenant="a"))
        await until(lambda: ids(broker), ["again"])


async def test_a_unique_job_in_no_queue_is_a_stray(broker: RabbitmqBroker, another: Open, channel: Any) -> None:
    leader = await another()

    async def has_jobs(place: TenantQueue) -> bool:
        return await leader._leader_client.ask(HasTenantJobs(place.queue, place.tenant))

    async def suspected() -> list[str]:
        keys, later = await leader.keys.known(), time.time() + 60
        found = await orphaned_keys.suspects(
            broker._exchange, leader._connection, keys, now=later, tenant_has_jobs=has_jobs
        )
        return [stray.id for stray in found.values()]

    async with time_kept(leader):
        # The queue is full of nobody's, so that the tenant's job stays where it is; then that is emptied.
        await broker.publish_many(messages(20))
        await ask(broker, keyed("unique", tenant="a"))
        channel.queue_purge(amqp_queue(broker._exchange, "jobs"))
        assert await suspected() == []

        async def taken_away() -> list[str]:
            for queue in (own_queue(broker._exchange, "a"), amqp_queue(broker._exchange, "jobs")):
                channel.queue_purge(queue)
            return await suspected()

        await until(taken_away, ["unique"])
        await until(lambda: stray_ids(broker), ["unique"])
