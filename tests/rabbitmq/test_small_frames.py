"""Jobs with headers that do not fit the frames of a connection that has to publish them again."""

import asyncio
import time
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.core.failure import Failure
from palermo.core.lifecycle import Reschedule, fail
from palermo.core.time_slots import FOREIGN
from palermo.errors import BrokerRefused
from tests.contract.timing import time_kept
from tests.contract.tools import consume, counts, ids, message, take_and_ack, until
from tests.contract.unique_jobs import ask, begun, freed, keyed
from tests.rabbitmq.conftest import Open

LARGE = {"note": "n" * 20_000}


@pytest.fixture
def narrow(runner: asyncio.Runner, another: Open, small: dict[str, Any]) -> RabbitmqBroker:
    """A session with small frames."""
    return runner.run(another(**small))


async def has_failed(broker: RabbitmqBroker, id: str) -> None:
    """The job is in `failed`, with why, and nowhere else."""
    await until(lambda: ids(broker, "failed"), [id])
    (failed,) = (await broker.browse("failed")).messages
    assert (failed.queue, failed.body, failed.extra["dropped-headers"]) == ("jobs", b"[1]", "note")
    assert failed.failure is not None
    assert failed.failure.exception_class == "palermo.errors.HeadersTooLarge"
    assert "frame_max" in failed.failure.message
    await until(lambda: counts(broker), (0, 0))


async def snooze(worker: RabbitmqBroker) -> None:
    """Take a job and put it off, which means to publish it again."""
    consumer = await consume(worker)
    delivery = await begun(consumer)
    await consumer.settle(delivery, Reschedule(replace(delivery.message, run_at=time.time() + 60)))


async def test_a_snoozed_unique_job_too_large_for_the_worker_fails(
    broker: RabbitmqBroker, narrow: RabbitmqBroker
) -> None:
    async with time_kept(broker):
        await ask(broker, keyed("large", extra=LARGE))

        await snooze(narrow)

        await has_failed(broker, "large")
        await freed(broker)


async def test_with_failed_per_queue_such_jobs_fail_in_their_own_queue(another: Open, small: dict[str, Any]) -> None:
    broker, worker = await another(failed_per_queue=True), await another(**small, failed_per_queue=True)
    await broker.publish(message("snoozed", extra=LARGE))
    await snooze(worker)
    await broker.publish(message("due", run_at=time.time() + 0.5, extra=LARGE))

    async def apart() -> list[str]:
        return sorted(await ids(broker, "failed:jobs"))

    async with time_kept(worker):
        await until(apart, ["due", "snoozed"])
    assert await counts(broker, "failed") in ((0, 0), None)


async def test_a_job_of_others_that_is_not_due_and_does_not_fit_the_frames_fails(
    broker: RabbitmqBroker, narrow: RabbitmqBroker, exchange: str
) -> None:
    await broker.publish(message("small"))
    early = message("large", extra=LARGE | {FOREIGN: 1}, run_at=time.time() + 60)
    await (await broker._outbox.open()).send_job(exchange, "jobs", early)
    await broker.publish(message("last"))
    consumer = await consume(narrow)

    assert [(await take_and_ack(consumer)).id for _ in range(2)] == ["small", "last"]
    await has_failed(broker, "large")


async def test_a_failed_job_is_migrated_with_its_error_cut_to_the_frames(
    broker: RabbitmqBroker, narrow: RabbitmqBroker
) -> None:
    failure = Failure(exception_class="shop.Full", message="no", stack_trace="line\n" * 4_000, failed_at=5)
    await broker._outbox.publish(fail(message("long"), failure, worker="w"), "failed")

    assert await narrow.migrate("failed", "quorum") == 1

    (failed,) = (await broker.browse("failed")).messages
    assert failed.failure is not None
    assert (failed.id, failed.failure.exception_class, failed.failure.message) == ("long", "shop.Full", "no")


async def test_a_migration_stopped_by_small_frames_continues_with_larger_ones(
    broker: RabbitmqBroker, narrow: RabbitmqBroker
) -> None:
    await broker.publish_many([message("first"), message("large", extra=LARGE), message("last")])

    for _ in range(2):
        with pytest.raises(BrokerRefused, match=r"job large .* larger frame_max"):
            await narrow.migrate("jobs", "quorum")
    await broker.migrate("jobs", "quorum")

    assert await ids(broker) == ["first", "large", "last"]
