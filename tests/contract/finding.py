"""Contract: finding jobs by their ids, wherever they are."""

import time

from palermo.client.status import locate
from palermo.contract.broker import Broker
from tests.contract.tools import Open, consume, message, put_into_failed, take, take_and_ack, until


async def states(broker: Broker, *ids: str, queue: str = "jobs") -> list[str]:
    return [(await locate(broker, id, queue)).state for id in ids]


class FindingContract:
    async def test_a_job_is_found_wherever_it_is(self, broker: Broker, another: Open) -> None:
        await put_into_failed(broker, [message("failed")])
        await broker.publish(message("working"))
        consumer = await consume(await another())
        await take(consumer)
        await until(lambda: states(broker, "working"), ["working"])
        await broker.publish_many([message("waits"), message("cancelled"), message("tenant", tenant="a")])
        await broker.publish(message("later", run_at=time.time() + 3_600))
        await broker.cancel(["cancelled"])

        where = ("later", "waits", "cancelled", "tenant", "working", "failed", "nobody")
        assert await states(broker, *where) == ["scheduled", "pending", "cancelled", "pending", "working", "failed", ""]
        assert await states(broker, "waits", "cancelled", "nobody", queue="") == ["pending", "cancelled", ""]
        assert (await locate(broker, "nobody")).gone
        assert (await locate(broker, "failed", "jobs", failed=False)).gone
        assert (await locate(broker, "working")).worker == "pid:4711@example"

    async def test_several_jobs_are_found_by_ids_or_their_beginnings(self, broker: Broker, another: Open) -> None:
        await put_into_failed(broker, [message("order-17-failed")])
        await broker.publish(message("order-17-later", run_at=time.time() + 3_600))
        await broker.publish_many([message("order-17-waits"), message("order-18"), message("my-order-17", "other")])

        found = await broker.find(["order-18", "my-order-17", "order-1"], failed=False)
        begun = await broker.find(["order-17"], beginnings=True)

        assert sorted(place.id for place in found.jobs) == ["my-order-17", "order-18"]
        assert {place.id: place.state for place in begun.jobs} == {
            "order-17-later": "scheduled",
            "order-17-waits": "pending",
            "order-17-failed": "failed",
        }

    async def test_a_job_that_was_requeued_elsewhere_is_found(self, broker: Broker) -> None:
        await broker.publish_many([message("first"), message("moved", "other")])
        consumer = await consume(broker)
        await take_and_ack(consumer)

        await until(lambda: states(broker, "moved"), ["pending"])
        place = await locate(broker, "moved", "jobs")
        assert place.message is not None
        assert place.message.queue == "other"
