"""What the broker refuses for a while, has lost or has no room for: what is possible works, and so does all again."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika
import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.messages import Properties
from palermo.brokers.rabbitmq.amqp.publisher import Destination, Publisher, RecordQueue, Unroutable
from palermo.brokers.rabbitmq.amqp.stream import exists
from palermo.brokers.rabbitmq.broker import RabbitmqBroker, open_rabbitmq
from palermo.brokers.rabbitmq.publishing.job_destinations import Place, TenantQueue
from palermo.contract.broker import SessionParameters
from palermo.contract.recurring_entries import EntryChange
from palermo.contract.scheduled import ScheduledFilter
from palermo.core.address import parse_url
from palermo.core.due_times import FOREIGN, Intake
from palermo.core.election import Duty
from palermo.core.failure import Failure
from palermo.core.lifecycle import Reschedule, fail
from palermo.core.topology import amqp_queue, internal
from palermo.errors import BrokerRefused, BrokerUnavailable, PublishRefused
from palermo.inspector.doctor import broker_findings
from tests.contract.recurring import entry
from tests.contract.timing import due, time_kept
from tests.contract.tools import PATIENT, counts, ids, message, until
from tests.contract.unique_jobs import ask, begun, freed, keyed
from tests.contract.workers import consume, take_and_ack
from tests.harness.rig import Rig
from tests.helpers import HANGS, eventually
from tests.journal.reading import Journal
from tests.rabbitmq.conftest import Open, connected, ids_in, outbox_on, too_large
from tests.rabbitmq_node import Node, add_user, binary, set_permissions, url_of

USER, ALL, NOTHING = "changing", ".*", "^$"


@dataclass
class Two:
    """A session of a user whose permissions change, and one of a user who may do all."""

    node: Node
    session: SessionParameters
    limited: RabbitmqBroker
    free: RabbitmqBroker

    def permit(self, *, configure: str = ALL, write: str = ALL) -> None:
        set_permissions(self.node, USER, configure, write, ALL)


@pytest.fixture(scope="module")
def user_node(shared_node: Node) -> Node:
    """The node, which knows the user."""
    add_user(shared_node, USER, "secret")
    return shared_node


@pytest.fixture
def two(runner: asyncio.Runner, user_node: Node, exchange: str) -> Iterator[Two]:
    def session(url: str) -> SessionParameters:
        return SessionParameters(address=parse_url(url), exchange=exchange, timeout=PATIENT)

    set_permissions(user_node, USER, ALL, ALL, ALL)
    limited = session(url_of(user_node, user=USER, password="secret"))
    brokers = [runner.run(open_rabbitmq(one)) for one in (limited, session(url_of(user_node)))]
    yield Two(user_node, limited, *brokers)
    for broker in brokers:
        runner.run(broker.close())


async def test_a_leader_whose_reply_was_refused_answers_again(two: Two) -> None:
    async with time_kept(two.limited):
        await until(lambda: len(two.limited.duties) == len(Duty))
        two.permit(write=NOTHING)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await two.free.scheduled(ScheduledFilter())

        two.permit()

        async with asyncio.timeout(HANGS):
            assert (await two.free.scheduled(ScheduledFilter())).total == 0


@pytest.mark.slow
def test_a_worker_announces_its_unique_jobs_once_it_may(user_node: Node, exchange: str, tmp_path: Path) -> None:
    (tmp_path / "syncs.py").write_text("import palermo\n@palermo.job(unique='until_done')\ndef sync(): ...\n")
    with Rig(tmp_path, url=url_of(user_node), exchange=exchange, module="syncs") as rig:
        set_permissions(user_node, USER, ALL, ALL, r"^(?!.*~facts)")
        worker = rig.worker(PALERMO_URL=url_of(user_node, user=USER, password="secret"))
        eventually(lambda: "cannot store the options of unique jobs" in worker.log)
        rig.ready(worker)

        set_permissions(user_node, USER, ALL, ALL, ALL)

        eventually(lambda: "syncs.sync" in rig.client.run(lambda broker: broker.keys.announced()))


@pytest.mark.slow
def test_a_refused_journal_holds_no_job_up_and_is_written_later(user_node: Node, exchange: str, tmp_path: Path) -> None:
    # Few, so that one batch of the journal holds them. The test's own client would make the journal.
    jobs = [f"{number}" for number in range(20)]
    with Rig(tmp_path, url_of(user_node), exchange, module="shop", journal="off") as rig:
        set_permissions(user_node, USER, r"^(?!.*~journal)", ALL, ALL)
        worker = rig.worker(PALERMO_URL=url_of(user_node, user=USER, password="secret"), PALERMO_JOURNAL="all")

        for text in jobs:
            rig.enqueue("note", text)
        assert rig.await_lines(len(jobs)) == jobs
        eventually(lambda: "cannot write the journal" in worker.log)
        assert "write and read permission" in worker.log

        set_permissions(user_node, USER, ALL, ALL, ALL)
        eventually(lambda: "journal can be written again" in worker.log)
        Journal(rig.client).until(len(jobs), "succeeded")


@pytest.mark.slow
async def test_a_user_is_told_which_permissions_a_unique_job_needs(two: Two) -> None:
    set_permissions(two.node, USER, ALL, ALL, NOTHING)

    with pytest.raises(BrokerRefused, match=rf"refused for user '{USER}'.* read permission"):
        await ask(two.limited, keyed("1"))


async def test_a_job_that_needs_one_queue_more_than_allowed_is_refused_at_once(two: Two) -> None:
    await two.free.publish(message("first", "jobs"))
    # Now the list of tenants is there, and one of the two queues for delayed jobs.
    for other in (message("later", "jobs", run_at=time.time() + 7_200), message("theirs", "jobs", tenant="b")):
        await two.free.publish(other)
    soon = message("soon", "jobs", run_at=time.time() + 60)
    needs_a_queue = (message("new", "new"), soon, message("ours", "jobs", tenant="a"))
    none = binary('{"max-queues": 0}')
    assert two.node.evaluate(f'rabbit_vhost_limit:parse_set(<<"/">>, {none}, <<"tests">>)') == "ok"
    try:
        for job in needs_a_queue:
            with pytest.raises(BrokerRefused, match="queue limit in vhost '/'"):
                await two.free.publish(job)
        await two.free.publish(message("second", "jobs"))
    finally:
        two.node.evaluate('rabbit_vhost_limit:clear(<<"/">>, <<"tests">>)')
    assert {"first", "second"} <= set(await ids(two.free, "jobs"))


# -- a queue that another program has for itself


@contextmanager
def in_use(rig: Rig, queue: str, *, by: str = "consumer") -> Iterator[None]:
    """Another program consumes from the queue and lets nobody else do so, or has declared it for itself."""
    with pika.BlockingConnection(pika.URLParameters(rig.url)) as connection:
        channel = connection.channel()
        if by == "consumer":
            channel.basic_qos(prefetch_count=1)
            channel.basic_consume(amqp_queue(rig.exchange, queue), lambda *_: None, exclusive=True)
        else:
            channel.queue_declare(amqp_queue(rig.exchange, queue), exclusive=True)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("by", ["consumer", "declaration"])
def test_a_worker_serves_its_other_queues_while_one_is_in_exclusive_use(rabbitmq_rig: Rig, by: str) -> None:
    rig = rabbitmq_rig
    if by == "consumer":
        rig.enqueue("note", "held by the other program", queue="mail")
    with in_use(rig, "mail", by=by):
        worker = rig.worker("-q", "mail,jobs", "-c", "2")
        rig.ready(worker)
        for number in range(20):
            rig.enqueue("note", f"{number}")
        rig.await_lines(20)
        assert [row["pid"] for row in rig.workers()] == [worker.pid]
        assert worker.log.count("INFO connected") == 1, worker.log
        assert "set_permissions" not in worker.log
        assert by != "consumer" or worker.log.count("cannot use a queue") == 1, worker.log
        eventually(lambda: rig.rows("stats")["processed"] >= 20)

    rig.enqueue("note", "mailed", queue="mail")
    rig.await_lines(22 if by == "consumer" else 21)


@pytest.mark.slow
def test_a_worker_waits_for_a_queue_in_use_and_the_doctor_says_why(rabbitmq_rig: Rig) -> None:
    rig = rabbitmq_rig
    rig.enqueue("note", "held by the other program", queue="mail")
    with in_use(rig, "mail"):
        worker = rig.worker("-q", "mail")
        eventually(lambda: "cannot use a queue" in worker.log)
        assert [row["pid"] for row in rig.workers()] == [worker.pid]
        rig.enqueue("note", "waits", queue="mail")
        eventually(lambda: rig.pending("mail") == 1)
        [found] = [one for one in broker_findings(rig.client) if one.check == "queue mail"]
    rig.await_lines(2)

    assert worker.log.count("INFO connected") == 1, worker.log
    assert (found.level, "uses this queue exclusively" in found.text) == ("problem", True)
    assert "set_permissions" not in found.text + found.advice


async def test_a_queue_remade_by_another_ends_no_session(broker: RabbitmqBroker, exchange: str, channel: Any) -> None:
    consumer = await consume(broker, "a,b")
    for queue in ("a", "b"):
        await broker.publish(message(queue, queue))
        assert (await take_and_ack(consumer)).id == queue
    channel.queue_delete(amqp_queue(exchange, "a"))
    channel.queue_declare(amqp_queue(exchange, "a"), exclusive=True)

    for number in range(20):
        await broker.publish(message(f"{number}", "b"))
        assert (await take_and_ack(consumer)).id == f"{number}"


#: Deletes the exchange and the queue of this name, as another program does.
Delete = Callable[[str], None]


@pytest.fixture
def delete(rabbitmq_url: str) -> Iterator[Delete]:
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq_url))
    channel = connection.channel()

    def delete(name: str) -> None:
        channel.exchange_delete(name)
        channel.queue_delete(name)

    yield delete
    connection.close()


#: Of a queue that takes one message.
FULL = {"x-max-length": 1, "x-overflow": "reject-publish"}


async def test_a_record_is_stored_after_a_deletion(connection: Connection, exchange: str, delete: Delete) -> None:
    publisher = await Publisher.open(connection)

    async def ours() -> Publisher:
        return publisher

    records = RecordQueue(internal(exchange, "records"), connection, ours, {"x-queue-type": "classic"})
    assert not await records.exists()
    for _ in range(2):
        await records.write({"number": 1})
        await records.write({"number": 2})
        assert (await records.exists(), (await connection.probe(records.name)).messages) == (True, 2)
        delete(records.name)


async def being_made(connection: Connection, node: Node, name: str) -> "asyncio.Task[object]":
    """Make a quorum queue that has no leader for a second: RabbitMQ refuses what is published to it meanwhile.

    Returns once other sessions find the queue.
    """
    node.evaluate("sys:suspend(ra_server_sup_sup)")
    asyncio.get_running_loop().call_later(1.0, node.evaluate, "sys:resume(ra_server_sup_sup)")
    making = asyncio.create_task(connection.declare(name, {"x-queue-type": "quorum"}))
    await until(lambda: exists(connection, name))
    return making


async def test_a_record_waits_for_a_quorum_queue_being_made(session: SessionParameters, shared_node: Node) -> None:
    session, opened = replace(session, address=parse_url(url_of(shared_node))), list[Publisher]()
    async with connected(session) as one, connected(session) as other:

        async def ours() -> Publisher:
            opened.append(await Publisher.open(one))
            return opened[-1]

        records = RecordQueue(internal(session.exchange, "records"), one, ours, {"x-queue-type": "quorum"})
        making = await being_made(other, shared_node, records.name)
        await records.write({"number": 1})
        await making
        assert (await one.probe(records.name)).messages == 1
    assert len(opened) > 1, "nothing was refused"


@pytest.mark.parametrize(
    ("arguments", "is_lost", "error", "times"),
    [({}, False, Unroutable, 2), (FULL, False, PublishRefused, 2), ({}, True, BrokerUnavailable, 1)],
    ids=["gone twice in a row", "refuses", "session lost"],
)
async def test_what_cannot_be_stored_is_refused_and_not_sent_for_ever(
    connection: Connection, exchange: str, arguments: dict[str, Any], is_lost: bool, error: type, times: int
) -> None:
    publisher, name, sent = await Publisher.open(connection), internal(exchange, "records"), list[str]()

    async def make() -> None:
        if arguments:
            await connection.declare(name, arguments)

    async def send() -> None:
        sent.append(name)
        await publisher.send("", name, Properties(), b"1")

    destination = Destination(make, lambda: None)
    if arguments:
        await destination.publish(send)  # which fills it
    if is_lost:
        await connection.close()

    with pytest.raises(error):
        await destination.publish(send)

    assert len(sent) == times


@pytest.mark.parametrize("place", ["jobs", TenantQueue("jobs", "a"), Intake.NEW])
async def test_a_job_is_stored_at_its_place_also_after_that_was_deleted(
    session: SessionParameters, connection: Connection, delete: Delete, place: Place
) -> None:
    outbox, job = outbox_on(connection, session), message("one")
    exchange, key = outbox.destinations.route(place)
    queue = f"{exchange}.{key}" if exchange else key
    stored = []
    for gone in (queue, session.exchange, ""):
        await outbox.destinations.publish(place, job)
        stored.append((await connection.probe(queue)).messages)
        assert outbox.destinations.has(place)
        if gone:
            delete(gone)
    assert stored == [1, 1, 2]


@pytest.mark.parametrize("job", ["scheduled", "recurring", "tenant"])
async def test_a_leader_survives_deletions(broker: RabbitmqBroker, another: Open, delete: Delete, job: str) -> None:
    async def publish(id: str) -> None:
        match job:
            case "scheduled":
                await broker.publish(due(id, 0.5))
            case "recurring":
                await broker.change_recurring(EntryChange.put(entry(every=1.0, missed="skip")))
            case "tenant":
                await broker.publish(message(id, tenant="a"))

    async with time_kept(broker):
        await publish("before")
        consumer = await consume(await another())
        taken = {(await take_and_ack(consumer)).id}
        for gone in (broker._exchange, f"{broker._exchange}.jobs"):
            delete(gone)
            await publish(f"after {gone}")
            found = await take_and_ack(consumer)
            assert found.id not in taken
            taken.add(found.id)


# -- jobs with headers that do not fit the frames of a connection that publishes them again

LARGE = {"note": "n" * 20_000}


@pytest.fixture
def narrow(runner: asyncio.Runner, another: Open, small: dict[str, Any]) -> RabbitmqBroker:
    """A session with small frames."""
    return runner.run(another(**small))


async def snooze(worker: RabbitmqBroker) -> None:
    """Take a job and put it off, which means to publish it again."""
    consumer = await consume(worker)
    delivery = await begun(consumer)
    await consumer.settle(delivery, Reschedule(replace(delivery.message, run_at=time.time() + 60)))


async def test_a_snoozed_unique_job_with_large_headers_fails(broker: RabbitmqBroker, narrow: RabbitmqBroker) -> None:
    async with time_kept(broker):
        await ask(broker, keyed("large", extra=LARGE))

        await snooze(narrow)

        await too_large(broker, "large")
        await freed(broker)


async def test_with_failed_per_queue_such_jobs_fail_in_their_own_queue(another: Open, small: dict[str, Any]) -> None:
    broker, worker = await another(failed_per_queue=True), await another(**small, failed_per_queue=True)
    await broker.publish(message("snoozed", extra=LARGE))
    await snooze(worker)
    await broker.publish(message("due", run_at=time.time() + 0.5, extra=LARGE))

    async with time_kept(worker):
        await until(lambda: ids_in(broker, "failed:jobs"), ["due", "snoozed"])
    assert await counts(broker, "failed") in ((0, 0), None)


async def test_anothers_job_that_is_too_large_for_frames_fails(broker: RabbitmqBroker, narrow: RabbitmqBroker) -> None:
    await broker.publish(message("small"))
    early = message("large", extra=LARGE | {FOREIGN: 1}, run_at=time.time() + 60)
    await (await broker._outbox.open()).send_job(broker._exchange, "jobs", early)
    await broker.publish(message("last"))
    consumer = await consume(narrow)

    assert [(await take_and_ack(consumer)).id for _ in range(2)] == ["small", "last"]
    await too_large(broker, "large")
    await until(lambda: counts(broker), (0, 0))


@pytest.mark.slow
async def test_a_failed_job_is_migrated_with_its_error_cut(broker: RabbitmqBroker, narrow: RabbitmqBroker) -> None:
    failure = Failure(exception_class="shop.Full", message="no", stack_trace="line\n" * 4_000, failed_at=5)
    await broker._outbox.publish(fail(message("long"), failure, worker="w"), "failed")

    assert await narrow.migrate("failed", "quorum") == 1

    (failed,) = (await broker.browse("failed")).messages
    assert failed.failure is not None
    assert (failed.id, failed.failure.exception_class, failed.failure.message) == ("long", "shop.Full", "no")


@pytest.mark.slow
async def test_a_migration_continues_with_larger_frames(broker: RabbitmqBroker, narrow: RabbitmqBroker) -> None:
    await broker.publish_many([message("first"), message("large", extra=LARGE), message("last")])

    for _ in range(2):
        with pytest.raises(BrokerRefused, match=r"job large .* larger frame_max"):
            await narrow.migrate("jobs", "quorum")
    await broker.migrate("jobs", "quorum")

    assert await ids(broker) == ["first", "large", "last"]
