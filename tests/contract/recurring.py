"""Contract: jobs that run again and again."""

import time
from collections.abc import Mapping
from typing import Any

import pytest

from palermo.contract import clock
from palermo.contract.broker import Broker, Consumer
from palermo.contract.recurring import RecurringJob
from palermo.contract.recurring_entries import EntryChange, RecurringEntry
from palermo.core.limits import limit_headers
from palermo.core.message import Message
from palermo.errors import NotFound
from palermo.settings.settings import Settings
from palermo.worker.options import WorkerOptions
from palermo.worker.parent.session_duties import SessionDuties
from palermo.worker.registered import Registered
from tests.contract.timing import time_kept
from tests.contract.tools import Open, message, until
from tests.contract.workers import consume, nothing_for, take_and_ack


def entry(
    name: str = "sweep", *, every: float = 1.0, since: float | None = None, sent: Mapping[str, Any] = {}, **more: Any
) -> RecurringEntry:
    """A recurring job, due every second."""
    times = {"cron": more.pop("cron")} if "cron" in more else {"every": every}
    return RecurringEntry(
        recurring=RecurringJob(name=name, job="shop.sweep", missed=more.pop("missed", "once"), queue="jobs", **times),
        message=message(name, job="shop.sweep", **sent),
        since=time.time() if since is None else since,
        **{"origin": "runtime", **more},
    )


def seldom() -> float:
    """Seconds between two ticks of which the last is over and the next one minutes away: it would be one job more."""
    now = time.time()
    return next(float(each) for each in range(3_600, 10_000) if 10 < now % each < each - 300)


def passed_step() -> float:
    """Seconds between ticks of which the last is not just over, and the next is not near."""
    now = time.time()
    return next(float(each) for each in range(1_000, 2_000) if 100 < now % each < each - 100)


async def names(broker: Broker) -> list[str]:
    return [found.name for found in await broker.recurring()]


async def one(broker: Broker, name: str = "sweep") -> RecurringEntry:
    return next(found for found in await broker.recurring() if found.name == name)


async def fire(broker: Broker, name: str) -> str:
    """Have a recurring job run now; returns the id of that job."""
    change = EntryChange.run(name, clock.now())
    await broker.change_recurring(change)
    return change.id


async def fired_after(consumer: Consumer, instant: float) -> Message:
    """The next job whose tick is after this instant."""
    while float((job := await take_and_ack(consumer)).extra["tick"]) <= instant:
        pass
    return job


class RecurringContract:
    @pytest.mark.slow
    async def test_a_recurring_job_fires_at_its_ticks_once_each(self, broker: Broker, another: Open) -> None:
        consumer = await consume(await another())
        fired: list[str] = []
        async with time_kept(await another(), lambda jobs: fired.extend(job.id for job in jobs)):
            begun = time.time()
            # All, for a machine that stands still at a tick.
            sent = {"timeout": 3.5, "preview": "'ü'", "extra": {"region": "a"}}
            await broker.change_recurring(EntryChange.put(entry(since=begun, missed="all", sent=sent)))
            found = [(await take_and_ack(consumer), time.time()) for _ in range(3)]
            await until(lambda: len(fired) >= 3)
        assert fired[:3] == [one.id for one, _ in found]

        ticks = [float(got.extra["tick"]) for got, _ in found]
        assert ticks == [float(int(begun) + after) for after in (1, 2, 3)]
        late = [came - tick for tick, (_, came) in zip(ticks, found, strict=True)]
        assert 0 <= min(late) < 1, late
        first = found[0][0]
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ticks[0]))
        assert (first.id, first.job, first.body, first.timeout) == (f"sweep@{stamp}", "shop.sweep", b"[1]", 3.5)
        assert first.extra == {"region": "a", "recurring": "sweep", "tick": ticks[0]}
        # A machine that stands still lets another tick come before the session ends that keeps time.
        last_run = (await one(broker)).last_run
        assert last_run is not None
        assert last_run >= ticks[-1]
        assert last_run == int(last_run)

    @pytest.mark.slow
    async def test_a_tick_keeps_tenant_priority_limit_and_expiry(self, broker: Broker, another: Open) -> None:
        extra = limit_headers("shop.sweep", 2, "eu", "100/min")
        sent = {"tenant": "a", "share": 3.0, "properties": {"priority": 5}, "keep_result": True, "extra": extra}
        await broker.change_recurring(EntryChange.put(entry(missed="all", expires=60.0, sent=sent)))
        began = time.time()

        async with time_kept(await another()):
            got = await take_and_ack(await consume(await another()))

        assert (got.tenant, got.share, got.properties.get("priority"), got.keep_result) == ("a", 3.0, 5, True)
        assert extra.items() <= got.extra.items()
        assert began + 59 <= (got.expires_at or 0) <= time.time() + 61

    async def test_they_are_listed_by_name_as_they_were_put(self, broker: Broker, another: Open) -> None:
        put = [entry("b", every=3600, origin="code:shop.tasks"), entry("a", cron="0 3 * * *")]
        for each in put:
            await broker.change_recurring(EntryChange.put(each))

        for looking in (broker, await another()):
            found = await looking.recurring()
            assert [each.name for each in found] == ["a", "b"]
            assert [each.recurring for each in found] == [put[1].recurring, put[0].recurring]
            assert [each.message for each in found] == [put[1].message, put[0].message]
            assert found[1].origin == "code:shop.tasks"
            assert (found[1].next or 0) > time.time()

    @pytest.mark.slow
    async def test_a_disabled_or_removed_one_does_not_fire(self, broker: Broker, another: Open) -> None:
        consumer = await consume(await another())
        for name in ("fires", "disabled", "removed", "removed before"):
            await broker.change_recurring(EntryChange.put(entry(name)))
        await broker.change_recurring(EntryChange.switch("disabled", on=False))
        await broker.change_recurring(EntryChange.remove("removed before"))
        assert (await one(broker, "disabled")).next is None

        async with time_kept(await another()):
            await broker.change_recurring(EntryChange.remove("removed"))
            since = time.time()
            fired = [await fired_after(consumer, since) for _ in range(2)]
            assert {job.extra["recurring"] for job in fired} == {"fires"}
            await broker.change_recurring(EntryChange.put(entry("disabled", sent={"body": b"[2]"})))
            assert not (await one(broker, "disabled")).recurring.enabled
            since = time.time()
            await broker.change_recurring(EntryChange.switch("disabled", on=True))
            while (job := await fired_after(consumer, since)).extra["recurring"] == "fires":
                pass

        assert (job.extra["recurring"], job.body) == ("disabled", b"[2]")
        assert await names(broker) == ["disabled", "fires"]
        run, switch = EntryChange.run("removed", since), EntryChange.switch("removed", on=True)
        for change in (run, switch, EntryChange.remove("removed")):
            with pytest.raises(NotFound, match="'removed'"):
                await broker.change_recurring(change)

    @pytest.mark.slow
    @pytest.mark.parametrize("kept", [True, False], ids=["kept", "nobody"])
    async def test_one_can_be_run_now_be_it_enabled_or_not(self, broker: Broker, another: Open, kept: bool) -> None:
        await broker.change_recurring(EntryChange.put(entry(every=seldom())))
        await broker.change_recurring(EntryChange.switch("sweep", on=False))
        consumer = await consume(await another())
        began = time.time()

        async def run() -> None:
            sent = [await fire(broker, "sweep") for _ in range(2)]
            assert sorted([(await take_and_ack(consumer)).id for _ in range(2)]) == sorted(sent)
            await nothing_for(consumer)

        if kept:
            async with time_kept(await another()):
                await run()
        else:
            await run()
        assert began - 1 <= ((await one(broker)).last_run or 0) <= time.time() + 1

    @pytest.mark.slow
    async def test_ticks_that_nobody_fired_go_by_policy(self, broker: Broker, another: Open) -> None:
        now, step = time.time(), passed_step()
        for policy in ("skip", "once", "all"):
            since = (now // step - 3) * step + 1
            await broker.change_recurring(EntryChange.put(entry(policy, every=step, since=since, missed=policy)))
        consumer = await consume(await another())

        async with time_kept(await another()):
            got = [await take_and_ack(consumer) for _ in range(4)]
            await nothing_for(consumer)

        newest = now // step * step
        ticks = [(each.extra["recurring"], each.extra["tick"]) for each in got]
        assert sorted(ticks) == [*(("all", newest - step * n) for n in (2, 1, 0)), ("once", newest)]
        assert [tick for name, tick in ticks if name == "all"] == [newest - step * n for n in (2, 1, 0)]

    async def test_one_that_is_declared_again_makes_up_for_no_tick(self, broker: Broker, another: Open) -> None:
        now, step = time.time(), passed_step()
        worker_began = (now // step - 3) * step + 1
        sweep = entry(every=step, since=worker_began, missed="all")
        registered = Registered(jobs=(), queues=(), hooks=frozenset(), recurring=(sweep,))
        duties = SessionDuties(WorkerOptions(settings=Settings(), modules=("shop",), burst=True), registered)
        consumer = await consume(await another())

        duties.begin(await another())
        await until(lambda: names(broker), ["sweep"])
        await broker.change_recurring(EntryChange.remove("sweep"))
        await duties.end()
        duties.begin(await another())  # the worker connects again
        await until(lambda: names(broker), ["sweep"])
        await nothing_for(consumer)
        await duties.end()

        assert (await one(broker)).since >= now

    async def test_the_same_put_again_changes_nothing(self, broker: Broker) -> None:
        await broker.change_recurring(EntryChange.put(entry(every=3600)))
        before = await one(broker)

        await broker.change_recurring(EntryChange.put(entry(every=3600)))
        assert await one(broker) == before

        await broker.change_recurring(EntryChange.put(entry(every=7200)))
        assert (await one(broker)).since > before.since

    @pytest.mark.slow
    @pytest.mark.parametrize("declared", [True, False])
    async def test_one_fired_by_a_clock_far_ahead_is_mended(
        self, broker: Broker, another: Open, declared: bool
    ) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(clock, "_clock", Ahead())
            async with time_kept(await another()):
                await broker.change_recurring(EntryChange.put(entry(since=clock.now() - 2)))
                await until(lambda: fires(broker), True)
        assert (await one(broker)).since > time.time() + 86_400
        await broker.purge("jobs")

        if declared:
            await broker.change_recurring(EntryChange.put(entry()))
            assert (await one(broker)).since <= time.time()
        else:
            async with time_kept(await another()):
                await take_and_ack(await consume(await another()))


class Ahead:
    """A clock that is 30 days ahead."""

    def now(self) -> float:
        return time.time() + 30 * 86_400

    reached = now


async def fires(broker: Broker) -> bool:
    return (await one(broker)).last_run is not None
