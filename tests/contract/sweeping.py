"""Contract: going through a queue and taking out, or moving, what is meant."""

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from palermo.contract.broker import Broker
from palermo.contract.sweep import Keep, Move, Remove, Stop, SweepDecision, SweepProgress
from palermo.core.lifecycle import requeue
from palermo.core.message import Message
from palermo.errors import NotFound
from tests.contract.tools import Open, consume, counts, ids, message, messages, put_into_failed, take, until


def judge(verdicts: dict[str, SweepDecision]) -> Callable[[Message], SweepDecision]:
    return lambda found: verdicts.get(found.id, Keep())


class SweepingContract:
    async def test_what_is_kept_stays_in_its_order(self, broker: Broker) -> None:
        await broker.publish_many(messages(20))

        swept = await broker.sweep("jobs", judge({}))

        assert swept == SweepProgress(total=20, seen=20)
        assert await ids(broker) == [f"jobs-{number}" for number in range(20)]

    async def test_what_is_removed_is_gone_and_the_rest_keeps_its_order(self, broker: Broker) -> None:
        await broker.publish_many(messages(6))

        swept = await broker.sweep("jobs", judge({"jobs-1": Remove(), "jobs-4": Remove()}))

        assert swept == SweepProgress(total=6, seen=6, removed=2)
        await until(lambda: ids(broker), ["jobs-0", "jobs-2", "jobs-3", "jobs-5"])

    async def test_what_is_moved_is_in_its_new_queue_and_no_longer_in_the_old(self, broker: Broker) -> None:
        await put_into_failed(broker, messages(4))

        def decide(found: Message) -> SweepDecision:
            return Move(requeue(found, queue="again")) if found.id in ("jobs-1", "jobs-2") else Keep()

        swept = await broker.sweep("failed", decide)

        assert swept == SweepProgress(total=4, seen=4, moved=2)
        await until(lambda: ids(broker, "failed"), ["jobs-0", "jobs-3"])
        found = (await broker.browse("again")).messages
        assert [(one.id, one.queue, one.retries, one.failure) for one in found] == [
            ("jobs-1", "again", 1, None),
            ("jobs-2", "again", 1, None),
        ]

    async def test_stop_leaves_the_rest_alone(self, broker: Broker) -> None:
        await broker.publish_many(messages(5))
        asked: list[str] = []

        def decide(found: Message) -> SweepDecision:
            asked.append(found.id)
            return Remove() if len(asked) <= 2 else Stop()

        swept = await broker.sweep("jobs", decide)

        assert (swept.total, swept.removed, asked) == (5, 2, ["jobs-0", "jobs-1", "jobs-2"])
        await until(lambda: ids(broker), ["jobs-2", "jobs-3", "jobs-4"])

    async def test_both_copies_of_one_id_are_asked_about(self, broker: Broker) -> None:
        await broker.publish_many([message("twin"), message("single"), message("twin")])

        swept = await broker.sweep("jobs", judge({"twin": Remove()}))

        assert swept.removed == 2
        await until(lambda: ids(broker), ["single"])

    async def test_one_failed_job_is_found_among_many_and_no_other_is_touched(self, broker: Broker) -> None:
        await put_into_failed(broker, messages(250))

        swept = await broker.sweep("failed", judge({"jobs-230": Remove()}), ids=["jobs-230"])

        assert swept == SweepProgress(total=250, seen=250, removed=1)
        left = (await broker.browse("failed", limit=250)).messages
        assert [one.id for one in left] == [f"jobs-{number}" for number in range(250) if number != 230]

    async def test_both_copies_of_a_failed_job_go_when_its_id_is_asked_for(self, broker: Broker) -> None:
        await put_into_failed(broker, [message("twin"), *messages(120), message("twin"), message("zwölf")])

        twins = await broker.sweep("failed", judge({"twin": Remove()}), ids=["twin", "nobody"])
        other = await broker.sweep("failed", judge({"zwölf": Remove()}), ids=["zwölf", "jobs-3"])

        assert (twins.removed, other.removed) == (2, 1)
        await until(lambda: counts(broker, "failed"), (120, 0))

    async def test_a_look_at_one_failed_job_stops_where_it_is_told_to(self, broker: Broker) -> None:
        await put_into_failed(broker, messages(5))
        found: list[str] = []

        def see(one: Message) -> SweepDecision:
            if one.id == "jobs-3":
                found.append(one.id)
            return Stop() if found else Keep()

        await broker.sweep("failed", see, only_look=True, ids=["jobs-3"])

        assert found == ["jobs-3"]
        assert await ids(broker, "failed") == [f"jobs-{number}" for number in range(5)]

    async def test_what_is_moved_to_the_same_queue_is_not_looked_at_again(self, broker: Broker) -> None:
        await broker.publish_many(messages(10))

        swept = await broker.sweep("jobs", lambda found: Move(replace(found, retries=(found.retries or 0) + 1)))

        assert swept == SweepProgress(total=10, seen=10, moved=10)
        found = (await broker.browse("jobs")).messages
        assert [(one.id, one.retries) for one in found] == [(f"jobs-{number}", 1) for number in range(10)]

    async def test_what_comes_in_meanwhile_is_not_looked_at(self, broker: Broker, another: Open) -> None:
        other = await another()
        await broker.publish_many(messages(1_000))
        await until(lambda: counts(broker), (1_000, 0))
        arrived = 0
        publishing: list[asyncio.Task[None]] = []

        def decide(found: Message) -> SweepDecision:
            nonlocal arrived
            arrived += found.id == "late"
            if len(publishing) < 3:
                publishing.append(asyncio.get_running_loop().create_task(other.publish(message("late"))))
            return Remove()

        swept = await broker.sweep("jobs", decide)
        await asyncio.gather(*publishing)

        assert (swept.seen, arrived) == (1_000, 0)
        await until(lambda: ids(broker), ["late"] * 3)

    async def test_what_a_worker_holds_is_left_to_it(self, broker: Broker, another: Open) -> None:
        await broker.publish_many(messages(3))
        consumer = await consume(await another())
        held = await take(consumer)
        await until(lambda: counts(broker), (2, 1))

        swept = await broker.sweep("jobs", lambda found: Remove())

        assert (held.message.id, swept.removed) == ("jobs-0", 2)
        await until(lambda: counts(broker), (0, 1))

    async def test_progress_is_told_and_ends_at_the_total(self, broker: Broker) -> None:
        await broker.publish_many(messages(1_500))
        await until(lambda: counts(broker), (1_500, 0))
        told: list[SweepProgress] = []

        swept = await broker.sweep("jobs", judge({"jobs-7": Remove()}), progress=told.append)

        assert swept == SweepProgress(total=1_500, seen=1_500, removed=1)
        assert len(told) > 1
        assert told[-1] == swept
        assert [one.seen for one in told] == sorted(one.seen for one in told)

    async def test_a_judge_that_raises_harms_nothing(self, broker: Broker) -> None:
        await broker.publish_many(messages(5))

        def decide(found: Message) -> SweepDecision:
            if found.id == "jobs-3":
                raise LookupError("a judge may raise")
            return Keep()

        with pytest.raises(LookupError, match="a judge may raise"):
            await broker.sweep("jobs", decide)

        await until(lambda: ids(broker), [f"jobs-{number}" for number in range(5)])

    async def test_a_queue_that_is_not_there_cannot_be_swept(self, broker: Broker) -> None:
        with pytest.raises(NotFound, match="'nowhere'"):
            await broker.sweep("nowhere", judge({}))

    async def test_an_empty_queue_is_swept_at_once(self, broker: Broker) -> None:
        await broker.publish(message("gone"))
        await broker.purge("jobs")

        assert await broker.sweep("jobs", judge({"gone": Remove()})) == SweepProgress(total=0)
