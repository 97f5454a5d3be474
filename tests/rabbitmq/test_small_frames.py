"""Jobs with headers that do not fit the frames of a connection that has to publish them again."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq.broker import RabbitmqBroker, open_rabbitmq
from palermo.contract.broker import SessionParameters
from palermo.core.address import parse_url
from palermo.core.failure import Failure
from palermo.core.lifecycle import Reschedule, fail
from palermo.core.time_slots import FOREIGN
from palermo.errors import BrokerRefused
from tests.contract.timing import time_kept
from tests.contract.tools import PATIENT, consume, counts, ids, message, take_and_ack, until
from tests.contract.unique_jobs import ask, begun, freed, keyed
from tests.helpers import HANGS

LARGE = {"note": "n" * 20_000}


@pytest.fixture
def session(rabbitmq_url: str, exchange: str) -> SessionParameters:
    return SessionParameters(address=parse_url(rabbitmq_url), exchange=exchange, timeout=PATIENT)


def with_frames(session: SessionParameters, work: Callable[[RabbitmqBroker, RabbitmqBroker], Awaitable[None]]) -> None:
    """Do the work with two sessions, of which the second one has small frames."""
    small = replace(session, address=replace(session.address, options=(("frame_max", "8192"),)))

    async def go() -> None:
        broker, worker = await open_rabbitmq(session), await open_rabbitmq(small)
        try:
            async with asyncio.timeout(HANGS):
                await work(broker, worker)
        finally:
            await worker.close()
            await broker.close()

    asyncio.run(go())


async def has_failed(broker: RabbitmqBroker, id: str) -> None:
    """The job is in `failed`, with why, and nowhere else."""
    await until(lambda: ids(broker, "failed"), [id])
    (failed,) = (await broker.browse("failed")).messages
    assert (failed.queue, failed.body, failed.extra["dropped-headers"]) == ("jobs", b"[1]", "note")
    assert failed.failure is not None
    assert failed.failure.exception_class == "palermo.errors.HeadersTooLarge"
    assert "frame_max" in failed.failure.message
    await until(lambda: counts(broker), (0, 0))


def test_a_job_that_is_to_run_later_and_does_not_fit_the_workers_frames_fails(session: SessionParameters) -> None:
    async def work(broker: RabbitmqBroker, worker: RabbitmqBroker) -> None:
        await broker.publish(message("large", extra=LARGE))
        consumer = await consume(worker)
        delivery = await begun(consumer)

        await consumer.settle(delivery, Reschedule(replace(delivery.message, run_at=time.time() + 60)))

        await has_failed(broker, "large")

    with_frames(session, work)


def test_with_failed_per_queue_such_jobs_lie_with_the_failed_jobs_of_their_queue(session: SessionParameters) -> None:
    async def work(broker: RabbitmqBroker, worker: RabbitmqBroker) -> None:
        await broker.publish(message("snoozed", extra=LARGE))
        consumer = await consume(worker)
        delivery = await begun(consumer)
        await consumer.settle(delivery, Reschedule(replace(delivery.message, run_at=time.time() + 60)))
        await broker.publish(message("due", run_at=time.time() + 0.5, extra=LARGE))

        async def apart() -> list[str]:
            return sorted(await ids(broker, "failed:jobs"))

        async with time_kept(worker):
            await until(apart, ["due", "snoozed"])
        assert await counts(broker, "failed") in ((0, 0), None)

    with_frames(replace(session, failed_per_queue=True), work)


def test_the_unique_key_of_such_a_job_is_free(session: SessionParameters) -> None:
    async def work(broker: RabbitmqBroker, worker: RabbitmqBroker) -> None:
        async with time_kept(broker):
            await ask(broker, keyed("large", extra=LARGE))
            consumer = await consume(worker)
            delivery = await begun(consumer)

            await consumer.settle(delivery, Reschedule(replace(delivery.message, run_at=time.time() + 60)))

            await has_failed(broker, "large")
            await freed(broker)

    with_frames(session, work)


def test_a_job_of_another_program_that_is_not_due_and_does_not_fit_the_workers_frames_fails(
    session: SessionParameters,
) -> None:
    async def work(broker: RabbitmqBroker, worker: RabbitmqBroker) -> None:
        await broker.publish(message("small"))
        early = message("large", extra=LARGE | {FOREIGN: 1}, run_at=time.time() + 60)
        await (await broker._outbox.open()).send_job(session.exchange, "jobs", early)
        await broker.publish(message("last"))
        consumer = await consume(worker)

        assert [(await take_and_ack(consumer)).id for _ in range(2)] == ["small", "last"]
        await has_failed(broker, "large")

    with_frames(session, work)


def test_a_failed_job_is_migrated_with_its_error_cut_to_the_frames(session: SessionParameters) -> None:
    failure = Failure(exception_class="shop.Full", message="no", stack_trace="line\n" * 4_000, failed_at=5)

    async def work(broker: RabbitmqBroker, migrating: RabbitmqBroker) -> None:
        await broker._outbox.publish(fail(message("long"), failure, worker="w"), "failed")

        assert await migrating.migrate("failed", "quorum") == 1

        (failed,) = (await broker.browse("failed")).messages
        assert failed.failure is not None
        assert (failed.id, failed.failure.exception_class, failed.failure.message) == ("long", "shop.Full", "no")

    with_frames(session, work)


def test_a_migration_that_meets_headers_that_do_not_fit_says_so_and_goes_on_with_larger_frames(
    session: SessionParameters,
) -> None:
    async def work(broker: RabbitmqBroker, migrating: RabbitmqBroker) -> None:
        await broker.publish_many([message("first"), message("large", extra=LARGE), message("last")])

        for _ in range(2):
            with pytest.raises(BrokerRefused, match=r"job large .* larger frame_max"):
                await migrating.migrate("jobs", "quorum")
        await broker.migrate("jobs", "quorum")

        assert await ids(broker) == ["first", "large", "last"]

    with_frames(session, work)
