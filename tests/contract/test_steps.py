"""SQLite and Redis change only what is as it was read, remove only what waits, and pass over what says nothing."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.brokers.features.steps import Job, Part, Refused, Step, StepStore, text_of, unchanged
from palermo.brokers.features.sweep import sweep
from palermo.brokers.features.unique_keys import change_keyed, jobs_removed
from palermo.brokers.features.workflows import Workflows, key_changer
from palermo.brokers.redis.broker import RedisBroker
from palermo.brokers.sqlite.broker import SqliteBroker
from palermo.contract.broker import Broker, Delivery
from palermo.contract.scheduled import RUN, ScheduledFilter
from palermo.contract.sweep import Keep, Move, Remove, SweepDecision
from palermo.core.lifecycle import Ack, Fail, Release, Reschedule, Settlement, fail, requeue
from palermo.core.message import Message
from palermo.errors import DeliveryLost
from tests.contract.limiting import limited, nothing_permitted, permitted
from tests.contract.timing import due, time_kept
from tests.contract.tools import FAILURE, counts, ids, message, messages, put_into_failed, until
from tests.contract.unique_jobs import RERUN, ask, begun, holders, keyed
from tests.contract.workers import at_work, consume, take


@pytest.fixture(params=["broker", "redis_broker"], ids=["sqlite", "redis"])
def either(runner: asyncio.Runner, request: pytest.FixtureRequest) -> Broker:
    broker: Broker = request.getfixturevalue(request.param)
    return broker


def steps_of(broker: Broker) -> StepStore:
    assert isinstance(broker, SqliteBroker | RedisBroker)
    return broker._steps if isinstance(broker, SqliteBroker) else broker._store


async def read_jobs(steps: StepStore) -> tuple[str, list[tuple[Any, Message]]]:
    """The place, the numbers and the messages of the jobs in the queue, as a sweep reads them."""
    extent = await steps.extent("jobs")
    part = await steps.part("jobs", extent.places[0], None, extent.last, ())
    return extent.places[0], [(number, found) for _, number, found in part.jobs]


async def take_back(steps: StepStore, held: Delivery) -> None:
    """Give the job back, as another process does that takes its worker for dead."""
    await steps.change((), [("release", held.token.holder, held.token.number)])


@pytest.mark.parametrize("read", [None, "older"])
async def test_a_change_to_what_another_has_changed_is_refused(either: Broker, read: str | None) -> None:
    steps = steps_of(either)

    def write(state: str) -> list[Step]:
        return [("set", "limits", "key", state)]

    if read is not None:
        await steps.change((), write(read))
    as_read = [unchanged("limits", "key", *await steps.states("limits", ["key"]))]
    await steps.change(as_read, write("newer"))

    with pytest.raises(Refused):
        await steps.change(as_read, write("lost"))

    (state,) = await steps.states("limits", ["key"])
    assert state is not None
    assert text_of(state) == "newer"


async def test_a_job_that_was_taken_is_neither_removed_nor_moved(either: Broker) -> None:
    steps = steps_of(either)
    await either.publish_many(messages(2))
    place, ((number, _), _) = await read_jobs(steps)
    held = await take(await consume(either))

    for replacement in (False, Job(message("copy"))):
        removal = ("remove", "jobs", place, number, replacement)
        assert await steps.change((), [removal]) == [0]
        assert (await steps.try_change([("waits", "jobs", place, number)], [removal])).failed == 1

    assert held.message.id == "jobs-0"
    assert await ids(either) == ["jobs-1"]
    assert await counts(either) == (1, 1)


async def test_a_job_that_came_due_is_neither_cancelled_nor_put_off(either: Broker) -> None:
    steps = steps_of(either)
    await either.publish(message("due", run_at=time.time() + 3_600))
    ((number, _),) = [one async for one in steps.later(ScheduledFilter())]
    await either.alter_scheduled(ScheduledFilter(), RUN)
    assert await ids(either) == ["due"]

    for replacement in (False, Job(message("copy"))):
        removal = ("remove_later", number, replacement)
        assert await steps.change((), [removal]) == [0]
        assert (await steps.try_change([("scheduled", number)], [removal])).failed == 1

    assert await ids(either) == ["due"]


async def test_an_unreadable_recurring_job_is_tried_again_after_a_minute(either: Broker) -> None:
    steps, now = steps_of(either), time.time()
    await steps.change((), [("set", "recurring", "sweep", '{"version": 99}', now)])

    async with time_kept(either):
        await until(lambda: steps.due("recurring", now, 1), [])

    assert await steps.due("recurring", now + 90, 1) == ["sweep"]


@pytest.mark.parametrize("step", ["admit", "permit"])
async def test_a_job_that_was_taken_back_is_not_started(either: Broker, step: str) -> None:
    await (ask(either, keyed("a")) if step == "admit" else either.publish(limited("a")))
    consumer = await consume(either)
    held = await take(consumer)
    await take_back(steps_of(either), held)

    with pytest.raises(DeliveryLost):
        await getattr(consumer, step)(held)

    assert await holders(either) == ([("a", "waiting")] if step == "admit" else [])
    assert await ids(either) == ["a"]


_FAILED = fail(message("a"), FAILURE, worker="pid:1@h/worker-1")
SETTLEMENTS = (Fail(_FAILED), Reschedule(message("a", retries=1)), Release())


@pytest.mark.parametrize("settlement", SETTLEMENTS, ids=["fail", "retry", "release"])
async def test_a_job_that_was_taken_back_is_not_settled(either: Broker, settlement: Settlement) -> None:
    consumer, held = await at_work(either, message("a"))
    await take_back(steps_of(either), held)

    with pytest.raises(DeliveryLost):
        await consumer.settle(held, settlement)

    assert [info.name for info in await either.queues()] == ["jobs"]
    assert await ids(either) == ["a"]


async def test_of_keyed_jobs_to_remove_one_that_was_taken_stays(either: Broker) -> None:
    steps = steps_of(either)
    for id in "abc":
        await ask(either, keyed(id, key=id), key=id)
    place, found = await read_jobs(steps)
    removals: list[tuple[Message, Step, Step]] = [
        (one, ("waits", "jobs", place, number), ("remove", "jobs", place, number, False)) for number, one in found
    ]
    await take(await consume(either))

    removed = await change_keyed(steps, removals, jobs_removed)

    assert [one.id for one in removed] == ["b", "c"]
    assert await holders(either) == [("a", "waiting")]
    assert await ids(either) == []


class ReadBefore:
    """A store in which others act between the time that a sweep reads the jobs and the time that it changes them."""

    def __init__(self, store: StepStore, act: Callable[[], Awaitable[object]]) -> None:
        self._store = store
        self._act = act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def part(self, *given: Any) -> Part:
        found = await self._store.part(*given)
        if not found.ends:
            await self._act()
        return found


@pytest.mark.parametrize("queue", ["jobs", "failed"])
@pytest.mark.parametrize("action", ["remove", "move"])
async def test_a_sweep_reports_only_jobs_that_it_took(either: Broker, queue: str, action: str) -> None:
    """Of four jobs others take one with a key and one without."""
    store: Any = ReadBefore(steps_of(either), lambda: take_half(either, queue))
    done, refused = list[str](), list[str]()
    for id in ("a", "b"):
        if queue == "jobs":
            await ask(either, keyed(id, key=id), key=id)
        else:
            await either.publish(replace(fail(keyed(id, key=id), FAILURE, worker="w"), queue="failed"))
    plain = [message(id) for id in ("c", "d")]
    await (either.publish_many(plain) if queue == "jobs" else put_into_failed(either, plain))

    def decide(found: Message) -> SweepDecision:
        note = partial(done.append, found.id)
        if action == "remove":
            return Remove(note)
        moved = requeue(found, queue="other") if queue == "failed" else replace(found, queue="other")
        return Move(moved, note, partial(refused.append, found.id))

    swept = await sweep(store, Workflows(store, key_changer(store)), queue, decide, None, ids=())

    assert (sorted(done), refused) == (["b", "d"], [])
    assert swept.removed + swept.moved == 2


async def take_half(broker: Broker, queue: str) -> None:
    """Start the jobs a and c, by way of a requeue if they have failed."""
    if queue == "failed":
        await broker.sweep("failed", lambda one: Move(requeue(one, queue="mine")) if one.id in {"a", "c"} else Keep())
    else:
        await broker.sweep("jobs", lambda one: Move(replace(one, queue="mine")) if one.id in {"a", "c"} else Keep())
    assert {(await begun(await consume(broker, "mine"))).message.id for _ in range(2)} == {"a", "c"}


async def test_an_unreadable_unique_key_is_free(either: Broker) -> None:
    await steps_of(either).change((), [("key", "broken", "{", 1.0, False, False)])

    async with time_kept(either):
        await either.publish(due("7c9e", 0.1))
        await until(lambda: counts(either), (1, 0))

    assert await either.keys.known() == []
    assert (await ask(either, keyed("1", key="broken"), key="broken")).outcome == "stored"


@pytest.mark.slow
async def test_keys_of_limits_that_say_nothing_are_forgotten(either: Broker) -> None:
    """Of 499 keys two go on to say something."""

    async def known() -> set[str]:
        return {text_of(name) for name in await steps_of(either).fields("limits")}

    over = [limited(f"{n}", None if n % 2 else 1, key=f"user-{n}", rate="1000/s" if n % 2 else "") for n in range(497)]
    await either.publish_many([*over, limited("r", None, key="paced", rate="1/day"), limited("1", key="kept")])
    await either.publish(limited("2", key="kept"))
    consumer = await consume(either, slots=2)
    for _ in range(498):
        await consumer.settle(await permitted(consumer, 1), Ack())
    await permitted(consumer, 1)
    await nothing_permitted(consumer, 2)
    assert len(await known()) == 499

    async with time_kept(either):
        await until(known, {"paced", "kept"})


async def test_a_purge_drops_the_job_that_was_to_run_next(either: Broker) -> None:
    await ask(either, keyed("a"))
    consumer = await consume(either)
    running = await begun(consumer)
    assert (await ask(either, keyed("b"), on_duplicate=RERUN)).outcome == "next"
    await consumer.settle(running, Release())

    assert await either.purge("jobs") == 1

    assert await holders(either) == []
    assert await ids(either) == []
