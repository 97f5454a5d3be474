"""Contract: an exchange holds what was put there, and nothing of another exchange."""

import pytest

from palermo.contract.broker import Broker, SessionParameters
from palermo.contract.events import Subscription
from palermo.contract.recurring_entries import EntryChange
from palermo.contract.scheduled import CANCEL, ScheduledFilter
from palermo.contract.worker_info import WorkerCommand
from palermo.core.queue_selection import EVERY_QUEUE
from palermo.core.topics import group_queue
from tests.contract.events import event
from tests.contract.journaling import Reading, append, caught_up
from tests.contract.recurring import entry
from tests.contract.timing import due, time_kept
from tests.contract.tools import Open, ids, message
from tests.contract.unique_jobs import ask, keyed
from tests.contract.worker_commands import Obeying
from tests.contract.workers import consume, take_and_ack


async def found(broker: Broker) -> list[str]:
    """What there is, of all that an exchange may hold."""
    reading = Reading()
    await caught_up(await broker.journal.read(reading))
    there = {
        "queues": await broker.queues(),
        "workers": await broker.workers(),
        "obedient workers": await broker.command(WorkerCommand(action="quiet")),
        "pause of all": await broker.all_paused(),
        "scheduled": (await broker.scheduled(ScheduledFilter())).messages,
        "recurring": await broker.recurring(),
        "keys": await broker.keys.known(),
        "tenants": sum((await broker.tenants.totals()).values()),
        "limits": await broker.limits(),
        "subscriptions": await broker.events.subscriptions(),
        "events": await broker.events.kept(),
        "journal": reading.ids,
    }
    return [what for what, value in there.items() if value]


class SeparatingContract:
    @pytest.mark.slow
    async def test_nothing_is_found_on_an_untouched_broker(self, broker: Broker, another: Open) -> None:
        await broker.resume("jobs")
        await broker.restore(["7c9e"])
        await broker.cancel([])

        assert await found(broker) == []
        async with time_kept(await another()):
            assert await found(broker) == []
            assert await broker.alter_scheduled(ScheduledFilter(), CANCEL) == []

    async def test_exchanges_share_nothing(self, broker: Broker, another: Open, session: SessionParameters) -> None:
        elsewhere = f"{session.exchange}-2"
        other, obeying = await another(exchange=elsewhere), Obeying({})
        mail = group_queue(elsewhere, session.prefix, "mail")
        await other.publish_many([message("there"), due("later", 86_400.0)])
        await other.change_recurring(EntryChange.put(entry(every=3_600.0)))
        await other.events.subscribe(Subscription(group="mail", queue=mail, topics=("#",)))
        await other.events.publish(event())
        await ask(other, keyed("keyed"))
        await append(other, ["a"])
        await other.pause("jobs")
        await other.pause(EVERY_QUEUE)
        await consume(await another(exchange=elsewhere), on_command=obeying)

        assert await found(broker) == []
        assert obeying.orders == []
        assert await broker.alter_scheduled(ScheduledFilter(), CANCEL) == []
        assert (await ask(broker, keyed("here"))).outcome == "stored"
        await broker.events.publish(event())
        assert (await take_and_ack(await consume(broker))).id == "here"

        await other.resume(EVERY_QUEUE)
        await other.resume("jobs")
        assert sorted(await ids(other)) == ["keyed", "there"]
