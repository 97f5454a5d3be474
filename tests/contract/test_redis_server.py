"""Redis alone has these: leases, scripts that it forgets, its errors, unsafe settings, and jobs deleted in one step."""

import asyncio
import inspect
import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest
import redis.exceptions
from msgspec.structs import replace

import palermo.errors
from palermo.brokers.redis.broker import RedisBroker
from palermo.brokers.redis.connection import translated
from palermo.brokers.redis.consumer import RedisConsumer
from palermo.brokers.redis.group_commit import GroupCommit
from palermo.client.client import Client
from palermo.contract.broker import Broker, Delivery, SessionParameters, open_broker
from palermo.contract.worker_info import WorkerCommand
from palermo.core.address import parse_url
from palermo.core.lifecycle import Ack, Fail, Release, fail
from palermo.core.message import Message
from palermo.errors import BrokerBlocked, BrokerError, BrokerRefused, BrokerUnavailable, PalermoError, PublishRefused
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from tests import redis_node
from tests.contract.tools import FAILURE, PATIENT, OpenRedis, counts, end_all_leases, ids, message, messages, until
from tests.contract.worker_commands import Obeying
from tests.contract.workers import Report, at_work, consume, take, take_and_ack
from tests.doc_pages import ROOT
from tests.helpers import Stopwatch, eventually
from tests.redis_node import RedisNode

#: What the guide for operators says that a user needs.
PERMISSIONS = re.findall(r"ACL SETUSER shop on >secret (.+)", (ROOT / "docs/guides/redis.md").read_text())[0].split()


@pytest.fixture
def broker(redis_broker: RedisBroker) -> RedisBroker:
    return redis_broker


async def test_a_worker_without_lease_settles_nothing(broker: RedisBroker, open_redis: OpenRedis) -> None:
    late, held = await at_work(broker, message("7c9e"), on=await open_redis(), report=Report("jobs", pid=1))

    await end_all_leases(broker)
    heir = await consume(broker, report=Report("jobs", pid=2))
    again = await take(heir)

    assert (again.message.id, again.redelivered, again.deaths) == ("7c9e", True, ("pid:1@example",))
    with pytest.raises((palermo.errors.DeliveryLost, BrokerUnavailable)):  # noqa: PT012 - the ack is sent with the next
        await late.settle(held, Ack())
        await take(late)
    assert await counts(broker) == (0, 1)
    await heir.settle(again, Ack())
    await until(lambda: counts(broker), (0, 0))


@pytest.mark.parametrize("how", ["soon", "after its lease", "after its session was closed"])
async def test_a_cut_session_is_no_workers_death(broker: RedisBroker, open_redis: OpenRedis, how: str) -> None:
    await broker.publish_many(messages(2))
    cut_off = await open_redis()
    await take(await consume(cut_off, report=Report("jobs", pid=1)))
    if how == "after its lease":
        await end_all_leases(broker)
        again = await take(await consume(broker, report=Report("jobs", pid=2)))
        assert (again.message.id, again.deaths, again.running_at) == ("jobs-0", ("pid:1@example",), "")
        await end_all_leases(broker)
    if how == "after its session was closed":
        (consumer,) = cut_off._consumers
        consumer._lose(BrokerUnavailable("cut off"))
        await cut_off.close()

    worker = await consume(await open_redis(cut_off.after_failure()), report=Report("jobs", pid=1))

    held = await take(worker)
    dead = ("pid:2@example",) if how == "after its lease" else ()
    assert (held.message.id, held.redelivered, held.deaths, held.running_at) == ("jobs-0", True, dead, "pid:1@example")
    await worker.settle(held, Release())
    held = await take(worker)
    assert (held.message.id, held.deaths, held.running_at) == ("jobs-0", dead, "")


async def test_the_end_of_a_session_reaches_every_slot_as_its_loss(broker: RedisBroker) -> None:
    await broker.publish_many(messages(1))
    await take(await consume(broker, slots=2))
    (consumer,) = broker._consumers
    held = next(iter(consumer._held.items()))
    waiting = asyncio.ensure_future(consumer.receive(2))
    await asyncio.sleep(0)

    consumer._lose(PublishRefused("Redis stores nothing: MISCONF"))

    with pytest.raises(BrokerUnavailable, match="MISCONF"):
        await waiting
    with pytest.raises(BrokerUnavailable, match="MISCONF"):
        consumer.acknowledge(Delivery(message=message(), slot=held[0], token=held[1]))


async def test_a_command_reaches_no_worker_of_another_database(
    node: RedisNode, broker: RedisBroker, open_redis: OpenRedis, redis_session: SessionParameters
) -> None:
    other = await open_redis(replace(redis_session, address=parse_url(f"{node.url}?db=1")))
    here, there = Obeying({}), Obeying({})
    await consume(broker, report=Report("jobs", pid=1), on_command=here)
    await consume(other, report=Report("jobs", pid=2), on_command=there)
    stop, quiet = WorkerCommand(action="stop"), WorkerCommand(action="quiet")

    replies = [*await broker.command(stop), *await other.command(quiet)]

    assert [reply.worker for reply in replies] == ["pid:1@example", "pid:2@example"]
    assert (here.orders, there.orders) == ([stop], [quiet])


async def test_scripts_that_redis_has_forgotten_are_brought_again(broker: RedisBroker) -> None:
    consumer = await consume(broker)
    waiting = asyncio.ensure_future(take_and_ack(consumer))

    await broker._store.call("SCRIPT", "FLUSH")
    await broker.publish(message("7c9e"))

    assert (await waiting).id == "7c9e"
    await broker._store.call("SCRIPT", "FLUSH")
    await broker.publish_many(messages(3))
    assert [(await take_and_ack(consumer)).id for _ in range(3)] == ["jobs-0", "jobs-1", "jobs-2"]


async def test_a_publish_that_is_sent_again_over_the_next_session_is_stored_once(open_redis: OpenRedis) -> None:
    silent = await open_redis()
    heir = await open_redis(silent.after_failure())
    one, many = message("7c9e"), messages(1_200)

    def broken_off() -> Iterator[Message]:
        yield from many[:700]
        raise EOFError

    # Both are under way at once, and Redis may run either first.
    await asyncio.gather(silent.publish(one), heir.publish(one))
    assert await counts(heir) == (1, 0)
    with pytest.raises(EOFError):
        await silent.publish_many(broken_off())
    assert await counts(heir) == (501, 0)
    assert await heir.publish_many(many) == 1_200
    assert await counts(heir) == (1_201, 0)

    await heir.publish(one)  # a job of its own: the first was answered
    assert await counts(heir) == (1_202, 0)


async def test_a_publish_that_was_given_up_before_its_answer_came_is_stored_once(open_redis: OpenRedis) -> None:
    one = message("7c9e")
    silent = await open_redis()
    given_up = asyncio.ensure_future(silent.publish(one))
    await asyncio.sleep(0)  # now it is sent
    given_up.cancel()
    heir = await open_redis(silent.after_failure())
    await until(lambda: counts(heir), (1, 0))

    await heir.publish(one)

    assert await counts(heir) == (1, 0)


async def test_a_publish_whose_script_failed_is_stored_when_repeated(broker: RedisBroker) -> None:
    one, queues = message("7c9e"), broker._store.key("queues")
    await broker._store.call("SET", queues, "not a hash")
    with pytest.raises(BrokerError):
        await broker.publish(one)
    await broker._store.call("DEL", queues)

    await broker.publish(one)

    assert await ids(broker) == ["7c9e"]


async def test_a_redis_user_needs_the_permissions_of_the_guide(
    broker: RedisBroker, open_redis: OpenRedis, redis_session: SessionParameters
) -> None:
    await broker._store.call("ACL", "SETUSER", "shop", "reset", "on", ">right", *PERMISSIONS)
    path = quote(redis_session.address.path)
    user = replace(redis_session, address=parse_url(f"redis+unix://shop:right@{path}"))

    with pytest.raises(BrokerRefused) as caught:
        await open_broker(replace(redis_session, address=parse_url(f"redis+unix://shop:wrong@{path}")))

    assert "wrong" not in str(caught.value)
    right = await open_redis(user)
    await right.publish(message("7c9e"))
    assert (await take_and_ack(await consume(right))).id == "7c9e"
    assert [one.text for one in await right.diagnose() if one.level == "problem"] == []

    await broker._store.call("ACL", "SETUSER", "shop", "resetchannels")
    client = await open_redis(user)
    assert [one.level for one in await client.diagnose()].count("problem") == 1

    await broker._store.call("ACL", "SETUSER", "shop", "-client")
    with pytest.raises(BrokerRefused, match="Check the user"):
        await open_redis(user)


@pytest.mark.parametrize("url", ["redis://h/shop", "redis://h?heartbeat=3", "rediss://h?ssl_ca_certs=/nowhere"])
async def test_an_address_that_means_nothing_is_refused_in_words(url: str) -> None:
    with pytest.raises(palermo.errors.UrlInvalid):
        await open_broker(SessionParameters(address=parse_url(url)))


async def fill(broker: Broker) -> None:
    for number in range(100):
        await broker.publish(message(f"{number}", body=b"x" * 500_000))


async def test_a_full_memory_refuses_jobs_and_workers_go_on() -> None:
    with redis_node.running("--maxmemory", "8mb") as node:
        broker = await open_broker(SessionParameters(address=parse_url(node.url), timeout=PATIENT))
        with pytest.raises(PublishRefused):
            await fill(broker)

        stored = len(await ids(broker))
        assert stored > 0
        consumer = await consume(broker)
        failed = await take(consumer)
        await consumer.settle(failed, Fail(fail(failed.message, FAILURE, worker="w")))
        for _ in range(stored - 1):
            await take_and_ack(consumer)
        await until(lambda: counts(broker), (0, 0))
        assert await ids(broker, "failed") == ["0"]
        await broker.close()


async def test_the_doctor_and_a_worker_warn_of_what_may_lose_jobs(caplog: pytest.LogCaptureFixture) -> None:
    careless = ("--appendonly", "no", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    with redis_node.running(*careless) as node:
        broker = await open_broker(SessionParameters(address=parse_url(node.url), timeout=PATIENT))
        await consume(broker)
        found = {one.check: one for one in await broker.diagnose()}
        durability = [found["durability"].text]
        node.ask("CONFIG", "SET", "appendonly", "yes")
        for fsync, on_rewrite in (("everysec", "no"), ("always", "yes")):
            node.ask("CONFIG", "SET", "appendfsync", fsync)
            node.ask("CONFIG", "SET", "no-appendfsync-on-rewrite", on_rewrite)
            durability += [one.text for one in await broker.diagnose() if one.check == "durability"]
        await broker.close()

    assert "allkeys-lru: jobs are lost when the memory is full" in caplog.text
    assert (found["durability"].level, found["eviction"].level) == ("warning", "problem")
    assert "allkeys-lru" in found["eviction"].text
    for text, setting in zip(durability, ("appendonly", "everysec", "no-appendfsync-on-rewrite"), strict=True):
        assert setting in text


@pytest.mark.slow
def test_a_session_closed_for_idleness_is_reopened_silently(caplog: pytest.LogCaptureFixture) -> None:
    with (
        redis_node.running("--timeout", "1") as node,
        Client(Settings(url=node.url, publish_timeout=PATIENT)) as client,
    ):
        for number in range(2):
            client.enqueue("shop.note", [number], {}, queue="jobs")
            eventually(lambda: b"name=palermo" not in node.ask("CLIENT LIST"))

        assert Inspector(client).queues.size("jobs") == 2
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_a_tenant_whose_jobs_are_done_leaves_no_key(broker: RedisBroker) -> None:

    async def left() -> list[bytes]:
        kinds = ("tenant:", "turns:", "tenant-jobs", "shares:")
        return [key for kind in kinds for key in await broker._store.call("KEYS", broker._store.key(f"{kind}*"))]

    await broker.publish_many([message(tenant=tenant, share=2.0) for tenant in ("acme", "zebra") for _ in range(3)])
    assert len(await left()) >= 3
    worker = await consume(broker)
    for _ in range(6):
        await take_and_ack(worker)

    await until(left, [])


async def test_a_message_that_a_lost_session_cannot_send_is_left_or_told_of(broker: RedisBroker) -> None:
    answered: list[PalermoError | None] = []
    assert broker.try_publish(message(), answered.append)

    await broker.close()

    await until(lambda: len(answered), 1)
    assert isinstance(answered[0], BrokerUnavailable)
    assert not broker.try_publish(message(), answered.append)


async def test_a_job_starts_within_moments_of_its_enqueue(broker: RedisBroker, open_redis: OpenRedis) -> None:
    """Not at the next look of an idle worker, which comes once a second."""
    consumer = await consume(await open_redis())
    took = []
    for _ in range(20):
        waiting = asyncio.ensure_future(take(consumer))
        await until(lambda: idle(broker), 1)
        watch = Stopwatch()
        await broker.publish(message())
        delivery = await waiting
        took.append(watch.seconds())
        await consumer.settle(delivery, Ack())

    assert sorted(took)[10] < 0.2, took


async def test_a_job_goes_to_a_waiting_worker_before_a_busy_one(broker: RedisBroker, open_redis: OpenRedis) -> None:
    """A worker that has its slot full gives the job back: then it would be one that was delivered before."""
    await broker.publish_many([message("first", "high"), message("second", "low")])
    both = await consume(await open_redis(), "high,low")
    other = await consume(await open_redis(), "low", report=Report("low", pid=2))
    for _ in range(2):
        await take_and_ack(both)
    for _ in range(5):
        taking = [asyncio.ensure_future(take(worker)) for worker in (both, other)]
        await until(lambda: idle(broker, "low"), 2)
        await until(lambda: idle(broker, "high"), 1)

        await broker.publish(message("urgent", "high"))
        first = await taking[0]
        await broker.publish(message("7c9e", "low"))
        second = await taking[1]

        assert [(one.message.id, one.redelivered) for one in (first, second)] == [("urgent", False), ("7c9e", False)]
        await both.settle(first, Ack())
        await other.settle(second, Ack())


async def idle(broker: RedisBroker, queue: str = "jobs") -> int:
    return int(await broker._store.call("SCARD", broker._store.key(f"idle:{queue}")))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("NOREPLICAS Not enough good replicas to write. script: 73bd, on @user_script:90.", BrokerBlocked),
        ("Error running script (call to f_73bd): @user_script:90: -READONLY You can't write", BrokerBlocked),
        ("Error running script (call to f_73bd): @user_script:90: -OOM command not allowed", PublishRefused),
        ("Script attempted to access a non local key in a cluster node script: 73bd", BrokerRefused),
    ],
)
def test_an_error_inside_a_script_means_what_it_means_outside(text: str, error: type[BrokerError]) -> None:
    assert type(translated("h:6379", redis.exceptions.ResponseError(text))) is error


def test_every_error_of_redis_py_becomes_one_of_ours() -> None:
    errors = [one for _, one in inspect.getmembers(redis.exceptions, inspect.isclass) if issubclass(one, Exception)]

    assert len(errors) > 20
    for each in errors:
        assert isinstance(translated("h:6379", each.__new__(each)), BrokerError), each


@pytest.mark.parametrize(
    "text", ["Are you sure your configuration is correct?", "invalid username-password pair.", "user is disabled."]
)
def test_what_redis_says_to_a_wrong_password_is_told_with_advice(text: str) -> None:
    said = str(translated("h:6379", redis.exceptions.AuthenticationError(text)))

    assert f"{text} Check the user" in said


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def after(*, job: float, script: float, clock: Clock) -> GroupCommit:
    """The state after one job and one script that have taken so many seconds."""
    group = GroupCommit(clock)
    group.job_began(1)
    clock.now += job
    group.job_ended(1)
    group.script_sent()
    clock.now += script
    group.script_answered()
    return group


async def both_run(broker: RedisBroker, *, script: float) -> tuple[RedisConsumer, Delivery, Delivery]:
    """The consumer of two slots, each with a job; jobs are short, and scripts take so many seconds."""
    await broker.publish_many(messages(2))
    await consume(broker, slots=2)
    (consumer,) = broker._consumers
    first, second = [await take(consumer, slot) for slot in (1, 2)]
    consumer._group = after(job=0.001, script=script, clock=Clock())
    consumer._group.job_began(1)
    consumer._group.job_began(2)
    return consumer, first, second


async def stored(broker: RedisBroker) -> int:
    return int(await broker._store.call("HLEN", broker._store.key("jobs")))


def test_a_script_waits_for_short_jobs_no_longer_than_a_script_takes() -> None:
    clock = Clock()
    group = after(job=0.001, script=0.005, clock=clock)
    assert group.wait() == 0.0  # no job runs

    group.job_began(1)
    assert group.wait() == pytest.approx(0.005)
    clock.now += 0.003
    group.job_began(2)
    assert group.wait() == pytest.approx(0.005)
    clock.now += 0.0045
    assert group.wait() == 0.001  # no timer is shorter
    clock.now += 0.001
    assert group.wait() == 0.0  # both take long

    group = after(job=0.006, script=0.005, clock=clock)
    group.job_began(1)
    assert group.wait() == 0.0  # a job takes longer than a script


@pytest.mark.parametrize(("script", "left"), [(600, 2), (0.05, 1)], ids=["soon", "not soon"])
async def test_a_job_that_is_done_waits_for_another_that_ends_soon(
    broker: RedisBroker, script: float, left: int
) -> None:
    consumer, first, second = await both_run(broker, script=script)

    consumer.acknowledge(first)
    await stored(broker)  # in the next turn of the loop the script would be sent

    await until(lambda: stored(broker), left)
    consumer.acknowledge(second)
    await until(lambda: stored(broker), 0)
