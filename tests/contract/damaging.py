"""All that a user does with a broker whose records another program has changed: nothing foreign is raised."""

import asyncio
import time
from typing import Any

from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.contract.events import Subscription
from palermo.contract.recurring_entries import EntryChange
from palermo.contract.scheduled import ScheduledFilter
from palermo.contract.sweep import Keep
from palermo.contract.unique_jobs import UniqueJob
from palermo.contract.worker_info import WorkerCommand
from palermo.core.journal_records import encode
from palermo.core.lifecycle import Ack, Fail, StoredResult, fail
from palermo.core.step_values import pack
from palermo.core.topics import group_queue
from palermo.core.unique_keys import KeyRequest
from palermo.core.workflow import AddedStep, Graph, StepJob
from palermo.core.workflow_rules import Condition, Plan
from palermo.errors import PalermoError
from tests.contract.events import event
from tests.contract.limiting import limited
from tests.contract.recurring import entry, fire
from tests.contract.timing import due, time_kept
from tests.contract.tools import FAILURE, ids, message, until
from tests.contract.unique_jobs import keyed
from tests.contract.workers import Report, Worker, consume

DAY = 86_400.0

#: What a workflow adds: a signal, and a step behind it.
ADDS = pack(
    Graph(
        steps=(
            AddedStep(Plan(name="go", signal=True)),
            AddedStep(Plan(name="one", after=(Condition(("go",)),)), StepJob.of(message("one"))),
        )
    )
)


def group(name: str) -> Subscription:
    return Subscription(group=name, queue=group_queue("palermo", "", name), topics=("order.*",))


async def fill(session: SessionParameters) -> list[Broker]:
    """Store two records of each kind, of which the first will be damaged; returns the sessions to close."""
    broker = await open_broker(session)
    for name in ("a", "b"):
        await broker.publish(message(f"{name}-job", f"{name}-queue"))
        await broker.publish(message(f"{name}-tenant", "a-queue", tenant=name))
        await broker.publish(message(f"{name}-failed", "failed"))
        await broker.publish(due(f"{name}-later", DAY))
        await broker.change_recurring(EntryChange.put(entry(f"{name}-entry", every=3_600.0)))
        await broker.events.subscribe(group(name))
        job = keyed(f"{name}-keyed", key=f"{name}-key", queue="keyed")
        await broker.keys.enqueue([KeyRequest(key=f"{name}-key", message=job, call=name)])
        unique = UniqueJob(name=f"{name}.unique", options={"unique": 1.0}, parameters=(("x", 1),))
        await broker.keys.announce([], [unique])
        await broker.pause(f"{name}-paused", by=name)
        await broker.cancel([f"{name}-cancelled"], by=name)
        await broker.journal.append(encode("w", []))
        await broker.publish(limited(f"{name}-limited", 1, key=name, rate="1/hour", queue="limited"))
        await broker.publish(message(f"{name}-workflow", "workflows"))
    for name in ("a", "b"):
        await broker.events.publish(event(id=f"{name}-event"))
    other = await open_broker(session)
    begins = await consume(other, "workflows")
    for _ in ("a", "b"):
        await begins.settle(await begins.receive(1), Ack(adds=ADDS))
    workers = [await consume(other, "limited", slots=2, report=Report("limited", pid=n)) for n in (1, 2)]
    for worker in workers:
        delivery = await worker.receive(1)
        await worker.permit(delivery)
    await asyncio.sleep(0)
    return [other, broker]


async def everything(session: SessionParameters) -> list[str]:
    """Do everything that a user does; returns the foreign exceptions."""
    foreign: list[str] = []

    async def attempt(what: str, work: Any) -> Any:
        try:
            async with asyncio.timeout(20):
                return await work
        except PalermoError:
            return None
        except Exception as error:  # anything else is what this looks for
            foreign.append(f"{what}: {error!r}")
            return None

    broker = await open_broker(session)
    worker = await attempt("consume", consume(broker, "*"))
    for what, call in {
        "publish": lambda: broker.publish(message("new", "a-queue")),
        "publish b": lambda: broker.publish(message("new b", "b-queue")),
        "overview": broker.overview,
        "workers": broker.workers,
        "command": lambda: broker.command(WorkerCommand(action="ping"), timeout=0.0),
        "pause": lambda: broker.pause("other"),
        "all paused": broker.all_paused,
        "resume": lambda: broker.resume("other"),
        "resume a": lambda: broker.resume("a-paused"),
        "cancel": lambda: broker.cancel(["a-later"]),
        "restore": lambda: broker.restore(["a-later"]),
        "browse": lambda: broker.browse("a-queue"),
        "browse failed": lambda: broker.browse("failed"),
        "sweep": lambda: broker.sweep("failed", lambda one: Keep()),
        "scheduled": lambda: broker.scheduled(ScheduledFilter()),
        "scheduled some": lambda: broker.scheduled(ScheduledFilter(queue="jobs")),
        "alter": lambda: broker.alter_scheduled(
            ScheduledFilter(ids=frozenset({"b-later"})), "move", at=time.time() + DAY
        ),
        "recurring": broker.recurring,
        "switch": lambda: broker.change_recurring(EntryChange.switch("a-entry", on=False)),
        "put": lambda: broker.change_recurring(EntryChange.put(entry("a-entry", every=7_200.0))),
        "fire": lambda: fire(broker, "a-entry"),
        "fire b": lambda: fire(broker, "b-entry"),
        "subscriptions": broker.events.subscriptions,
        "publish event": lambda: broker.events.publish(event(id="new")),
        "replay": lambda: broker.events.replay("b"),
        "kept": broker.events.kept,
        "subscribe": lambda: broker.events.subscribe(group("a")),
        "unsubscribe": lambda: broker.events.unsubscribe("a"),
        "keys": broker.keys.known,
        "key page": lambda: broker.keys.page("a", offset=0, limit=9),
        "key": lambda: broker.keys.find("a-key"),
        "keyed": lambda: broker.keys.enqueue([KeyRequest(key="a-key", message=keyed("new", key="a-key"), call="new")]),
        "orphaned": broker.keys.orphaned,
        "free": lambda: broker.keys.free(["a-key"]),
        "announced": broker.keys.announced,
        "announce": lambda: broker.keys.announce(["a.unique"], []),
        "limits": broker.limits,
        "tenants": lambda: broker.tenants.of("a-queue"),
        "totals": broker.tenants.totals,
        "diagnose": broker.diagnose,
        "journal": lambda: read_journal(broker),
        "append": lambda: broker.journal.append(encode("w", [])),
        "time": lambda: keep_time(broker),
        "limited": lambda: broker.publish(limited("new-limited", 1, key="a", rate="1000/s", queue="jobs")),
        "work": lambda: work_off(worker),
        "clear": lambda: broker.tenants.clear("a-queue", "a"),
        "purge": lambda: broker.purge("a-queue"),
        "delete": lambda: broker.delete("a-queue"),
        "workflows": broker.workflows.all,
        "workflow": lambda: broker.workflows.find("a-workflow"),
        "workflow's failed jobs": lambda: broker.workflows.failed_jobs("a-workflow"),
        "signal": lambda: broker.workflows.signal("a-workflow", "go", StoredResult("application/json", b"1")),
        "signal b": lambda: broker.workflows.signal("b-workflow", "go", StoredResult("application/json", b"1")),
        "cancel workflow": lambda: broker.cancel(["a-workflow", "b-workflow"]),
        "close": broker.close,
    }.items():
        await attempt(what, call())
    return foreign


async def read_journal(broker: Broker) -> None:
    reader = await broker.journal.read(lambda batch: None)
    try:
        async with asyncio.timeout(5):
            await reader.caught_up.wait()
    finally:
        await reader.close()


async def keep_time(broker: Broker) -> None:
    """A job that is due comes into its queue."""
    async with time_kept(broker):
        await broker.publish(due("soon", 0.02, queue="c-queue"))
        await until(lambda: ids(broker, "c-queue"), ["soon"])


async def work_off(worker: Worker) -> None:
    """Take each job that waits, and settle it; the good ones must come."""
    found = []
    try:
        async with asyncio.timeout(2):
            while "new b" not in found or "b-job" not in found:
                delivery = await worker.receive(1)
                found.append(delivery.message.id)
                if (admitted := await worker.admit(delivery)) is None:
                    continue
                if await worker.permit(admitted) is None:
                    continue
                if len(found) % 2:
                    await worker.settle(admitted, Fail(fail(admitted.message, FAILURE, worker="w")))
                else:
                    await worker.settle(admitted, Ack())
    except TimeoutError:
        raise AssertionError(f"only {found} came") from None
