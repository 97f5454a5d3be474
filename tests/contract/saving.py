"""Contract: what a job saves for its next run."""

from msgspec.structs import replace

from palermo.contract.broker import Broker
from palermo.core.lifecycle import Ack, Fail, Reschedule, fail, requeue
from tests.contract.tools import FAILURE, Open, counts, message, until
from tests.contract.workers import consume, nothing_for, take

SAVED = '{"loops":{"é":[3,17]}}'


class SavingContract:
    async def test_a_copy_of_a_job_has_what_it_saved(self, broker: Broker, another: Open) -> None:
        await broker.publish(message("a"))
        consumer = await consume(await another())
        delivery = await take(consumer)
        await consumer.save(delivery, "earlier")

        await consumer.settle(delivery, Reschedule(replace(delivery.message, saved=SAVED)))

        delivery = await take(consumer)
        assert (delivery.message.saved, delivery.redelivered) == (SAVED, False)
        await consumer.settle(delivery, Fail(fail(delivery.message, FAILURE, worker="w")))
        (failed,) = (await broker.browse("failed")).messages
        assert failed.saved == SAVED
        await broker.publish(requeue(failed))
        assert (await take(consumer)).message.saved == SAVED

    async def test_what_a_job_saves_after_its_end_is_nowhere(self, broker: Broker, another: Open) -> None:
        await broker.publish(message("a"))
        consumer = await consume(await another())
        delivery = await take(consumer)
        await consumer.settle(delivery, Ack())

        await consumer.save(delivery, SAVED)

        await nothing_for(consumer)
        await consumer.close()
        await until(lambda: counts(broker), (0, 0))
