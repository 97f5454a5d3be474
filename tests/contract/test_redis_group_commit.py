"""On Redis, jobs of several slots that end soon after each other are deleted in one step."""

import pytest

from palermo.brokers.redis.broker import RedisBroker
from palermo.brokers.redis.consumer import RedisConsumer
from palermo.brokers.redis.group_commit import GroupCommit
from palermo.contract.broker import Delivery
from tests.contract.tools import consume, messages, take, until


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


@pytest.fixture
def broker(redis_broker: RedisBroker) -> RedisBroker:
    return redis_broker


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


def test_no_script_waits_for_jobs_that_take_longer_than_a_script() -> None:
    group = after(job=0.006, script=0.005, clock=Clock())

    group.job_began(1)

    assert group.wait() == 0.0


async def test_a_job_that_is_done_waits_for_another_that_ends_soon(broker: RedisBroker) -> None:
    consumer, first, second = await both_run(broker, script=600)

    consumer.acknowledge(first)
    await stored(broker)  # in the next turn of the loop the script would be sent

    assert await stored(broker) == 2
    consumer.acknowledge(second)
    await until(lambda: stored(broker), 0)


async def test_a_job_that_is_done_does_not_wait_for_long(broker: RedisBroker) -> None:
    consumer, first, _ = await both_run(broker, script=0.05)

    consumer.acknowledge(first)

    await until(lambda: stored(broker), 1)
