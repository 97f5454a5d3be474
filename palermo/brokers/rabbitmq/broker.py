"""RabbitMQ as a broker: one session, on one connection to publish and one to consume.

Two connections, because under a memory or disk alarm RabbitMQ stops reading from a connection
that has ever published, acks included; the consuming one goes on. Where no jobs are taken it is opened
when first needed: a program that only enqueues has one connection.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any

from palermo.broker import Ended, Page, QueueInfo, Session, Swept, Verdict
from palermo.brokers.rabbitmq import sweep as sweeping
from palermo.brokers.rabbitmq.adoption import Adoption
from palermo.brokers.rabbitmq.audit import Audits
from palermo.brokers.rabbitmq.consumer import RabbitmqConsumer
from palermo.brokers.rabbitmq.declarer import Declarer
from palermo.brokers.rabbitmq.events import RabbitmqEvents
from palermo.brokers.rabbitmq.journal import StreamJournal
from palermo.brokers.rabbitmq.keys import RabbitmqKeys
from palermo.brokers.rabbitmq.limiting import RabbitmqLimits
from palermo.brokers.rabbitmq.link import Link, open_link, open_links
from palermo.brokers.rabbitmq.marks import Marks
from palermo.brokers.rabbitmq.outbox import Outbox
from palermo.brokers.rabbitmq.past import Past
from palermo.brokers.rabbitmq.poll import PollSource
from palermo.brokers.rabbitmq.presence import Presence, ask_workers, command_workers
from palermo.brokers.rabbitmq.publisher import Publisher
from palermo.brokers.rabbitmq.push import PushSource
from palermo.brokers.rabbitmq.registry import Names, Registry, follow
from palermo.brokers.rabbitmq.removal import Removal
from palermo.brokers.rabbitmq.starts import Starts
from palermo.brokers.rabbitmq.steering import Steering
from palermo.brokers.rabbitmq.tenants import Tenancy
from palermo.brokers.rabbitmq.timekeeper import Timekeeper
from palermo.brokers.rabbitmq.together import together
from palermo.brokers.rabbitmq.wiring import Wiring
from palermo.core.message import Message
from palermo.core.patterns import QueueSelection
from palermo.core.permits import LimitInfo
from palermo.core.prefetch import ONE, Prefetch
from palermo.core.topology import CLASSIC, FAILED_QUEUE, QUORUM, is_failed
from palermo.crew import Answer, Obey, Order, WorkerInfo, deaf
from palermo.entries import PUT, REMOVE, RUN, SWITCH, Change, Entry, run_id
from palermo.errors import BrokerError, BrokerRefused, BrokerUnavailable, NotBrowsable
from palermo.findings import Finding
from palermo.timetable import Altered, Chosen, Scheduled, Tell, meant_by, nobody

log = logging.getLogger("palermo.rabbitmq")


async def open_rabbitmq(session: Session) -> "RabbitmqBroker":
    """The entry point `amqp` and `amqps` of `palermo.brokers`."""
    return RabbitmqBroker(session, *await open_links(session, 2 if session.takes else 1))


class RabbitmqBroker:
    """See palermo.broker.Broker."""

    def __init__(self, session: Session, link: Link, consuming: Link | None = None) -> None:
        self._session = session
        self._exchange = session.exchange
        self._link = link
        self._consuming = consuming
        self._opening = asyncio.Lock()
        self._registry = Registry(self._exchange, self._open_publisher, patience=session.timeout)
        self._marks = Marks(self._exchange, link, self._open_publisher, patience=session.timeout)
        self._closed = False
        self._adoption = Adoption(self._exchange, self._registry, link)
        self._wiring = Wiring(session.prefix)
        self._declarer = self._declarer_on(link)
        self._outbox = Outbox(session, link, self._declarer)
        self._audits = Audits(self._exchange, self._outbox.failed_log)
        self._timekeeper = Timekeeper(session, link, self._declarer_on)
        self._limits = RabbitmqLimits(self._timekeeper)
        self.tenants = Tenancy(self._exchange, link, self._outbox, self._timekeeper)
        self.journal = StreamJournal(session, link, self._consume_link)
        self.events = RabbitmqEvents(
            session, link, self._wiring, self._declarer_on(link), self._outbox, self._consume_link
        )
        self.keys = RabbitmqKeys(session, link, self._outbox, self._timekeeper)
        self._removal = Removal(
            self._exchange,
            link,
            self._declarer,
            self._registry,
            self._outbox.failed_log,
            keys=self.keys,
            tenants=self.tenants,
        )

    async def publish(self, message: Message) -> None:
        await self._outbox.publish(message, message.queue)

    def post(self, message: Message, ended: Ended) -> bool:
        return self._outbox.post(message, ended)

    async def publish_many(self, messages: Iterable[Message], sent: Callable[[], None] | None = None) -> int:
        return await self._outbox.publish_many(messages, sent=sent)

    async def consume(
        self,
        selection: QueueSelection,
        *,
        slots: int,
        tag: str,
        report: Callable[[], WorkerInfo],
        obey: Obey = deaf,
        prefetch: Prefetch = ONE,
    ) -> RabbitmqConsumer:
        self._audits.wanted = False  # a worker, which trims, need not remember what is in the log
        link = await self._consume_link()
        declarer = self._declarer_on(link)

        def slot_tag(slot: int) -> str:
            return f"{tag}/worker-{slot}"

        source: PushSource | PollSource
        readied: list[Coroutine[Any, Any, None]] = []
        names: Names | None = None
        if selection.fixed and len(selection.patterns) == 1:
            queue = selection.patterns[0]
            source = PushSource(link, declarer, self._exchange, queue, slots=slots, tag=slot_tag, prefetch=prefetch)
            readied.append(source.prepare())
        else:
            if prefetch.most > 1:
                log.info("prefetch is 1, since this worker serves several queues queues=%s", selection)
            source = PollSource(link, declarer, self._exchange, selection, slots=slots, tag=slot_tag)
            names = None if selection.fixed else await follow(self._registry, link, source.know)
            await source.know(names.known if names is not None else set())
        steering = Steering(self._marks, link, obey=obey, pause=source.pause, held=lambda: consumer.held())
        presence = Presence(
            self._exchange, report, obey, self._outbox.open, steering.look, kind=self._session.queue_type
        )
        starts = Starts(self._exchange, report, self._outbox.open, link, inbox=presence.inbox)
        consumer = RabbitmqConsumer(
            source,
            presence,
            names,
            self._exchange,
            steering,
            lambda message, queue: self._outbox.publish(message, queue, patient=True),
            starts=starts,
            past=Past(starts, self._link, self.workers),
            # On a channel of its own: asking for what is not there closes it.
            count=self._declarer_on(link).count,
            is_foreign=declarer.is_foreign,
            keys=self.keys,
            limits=self._limits,
        )

        async def appear() -> None:
            # The ear before the look, a stream that is made after this is announced; and before the census, so that
            # whoever is counted also answers.
            await presence.listen(link)
            await together(steering.begin(), presence.begin())

        try:
            await together(*readied, appear())
        except BaseException:
            await steering.close()
            raise
        return consumer

    async def queues(self) -> list[QueueInfo]:
        await self._adoption.done()
        names = await self._registry.names(self._link) | {FAILED_QUEUE}
        paused = await self._marks.paused()
        apart = await self.tenants.totals()
        workers = await self.workers()
        running = [job.queue for worker in workers for job in worker.jobs]
        found: list[QueueInfo] = []
        for name in sorted(names | paused):
            counted = await self._declarer.count(name)
            if name.startswith("~"):
                continue  # a mark of our own, see migrate
            if counted is not None or name in paused:
                serving = sum(name in QueueSelection.parse(worker.queues).select([name]) for worker in workers)
                info = QueueInfo(
                    name=name,
                    pending=(counted[0] if counted else 0) + apart.get(name, 0),
                    in_progress=running.count(name),
                    workers=serving,
                    paused=name in paused,
                )
                found.append(info)
        return found

    async def workers(self) -> list[WorkerInfo]:
        return await ask_workers(self._link, self._exchange)

    async def command(self, order: Order, *, timeout: float = 5.0) -> list[Answer]:
        return await command_workers(self._link, self._exchange, order, timeout=timeout)

    async def pause(self, queue: str, *, by: str = "") -> None:
        await self._marks.pause(queue, by)

    async def resume(self, queue: str, *, by: str = "") -> None:
        await self._marks.resume(queue, by)

    async def cancel(self, ids: Iterable[str], *, by: str = "") -> None:
        chosen = list(ids)
        await self._marks.cancel(chosen, by)
        await self.keys.cancelled(chosen)

    async def restore(self, ids: Iterable[str]) -> None:
        await self._marks.restore(ids)

    async def browse(self, queue: str, *, offset: int = 0, limit: int = 100, newest: bool = False) -> Page:
        link = await self._consume_link()
        reader = sweeping.Reader(link, self._exchange, queue)
        held = await reader.count()
        kind = await self._declarer.kind(queue) if is_failed(queue) else await self._declarer.ensure(queue)
        if kind == QUORUM and is_failed(queue):
            return await self._outbox.failed_log.page(link, queue, held, offset=offset, limit=limit, newest=newest)
        if kind != CLASSIC:
            raise NotBrowsable(
                f"queue {queue!r} is a {kind} queue: reading it would count against the delivery limit of its jobs,"
                " so only its counts are shown."
            )
        page = await self.tenants.browse(reader, queue, offset=offset, limit=limit, newest=newest)
        if not page.messages or is_failed(queue):
            return page
        marks = await self._marks.cancelled()
        return replace(page, cancelled=frozenset(one.id for one in page.messages if marks.find(one)))

    async def sweep(
        self,
        queue: str,
        decide: Callable[[Message], Verdict],
        *,
        progress: Callable[[Swept], None] | None = None,
        only_look: bool = False,
        id: str = "",
    ) -> Swept:
        link = await self._consume_link()
        reader = sweeping.Reader(link, self._exchange, queue)
        held = await reader.count()
        tell = progress or (lambda _: None)
        logged = is_failed(queue) and await self._declarer.kind(queue) == QUORUM
        if logged and only_look:
            return await self._outbox.failed_log.show(link, queue, held, decide, tell, id=id)

        async def store(messages: list[Message]) -> None:
            if is_failed(queue):
                # Whoever requeues a job wants it run, and was told of no mark.
                await self._marks.restore(message.id for message in messages)
            await self.publish_many(messages)

        async def gate(jobs: list[tuple[Message, Message | None]]) -> list[bool]:
            return await self.keys.gate(queue, jobs)

        if logged:
            return await self._audits.sweep(reader, queue, decide, store, tell, gate)
        return await self.tenants.sweep(reader, queue, decide, store, tell, gate)

    async def keep_time(self, fired: Tell = nobody) -> None:
        await self._timekeeper.keep(fired)

    @property
    def leads(self) -> bool:
        return self._timekeeper.leads

    async def scheduled(self, chosen: Chosen, *, offset: int = 0, limit: int = 100) -> Scheduled:
        return await self._timekeeper.show(chosen, offset=offset, limit=limit)

    async def alter_scheduled(
        self, chosen: Chosen, action: str, *, at: float | None = None, failed_per_queue: bool = False
    ) -> list[Altered]:
        return await self._timekeeper.alter(meant_by(chosen, action), action, at, apart=failed_per_queue)

    async def recurring(self) -> list[Entry]:
        return await self._timekeeper.recurring()

    async def put_recurring(self, entry: Entry) -> None:
        await self._timekeeper.change(Change(name=entry.name, action=PUT, entry=entry))

    async def remove_recurring(self, name: str) -> None:
        await self._timekeeper.change(Change(name=name, action=REMOVE))

    async def switch_recurring(self, name: str, *, on: bool) -> None:
        await self._timekeeper.change(Change(name=name, action=SWITCH, on=on))

    async def fire_recurring(self, name: str) -> str:
        id = run_id(name, time.time())
        await self._timekeeper.change(Change(name=name, action=RUN, id=id))
        return id

    async def purge(self, queue: str) -> int:
        return await self._removal.purge(queue)

    async def migrate(self, queue: str, kind: str, *, progress: Callable[[Swept], None] | None = None) -> int:
        if self._wiring.is_group(queue):
            raise BrokerRefused(
                f"queue {queue!r} is that of a group that subscribes to events: it stays as other programs declare it."
            )

        async def busy() -> int:
            return sum(job.queue == queue for worker in await self.workers() for job in worker.jobs)

        from palermo.brokers.rabbitmq.migration import Migration

        migration = Migration(
            await self._consume_link(),
            self._exchange,
            queue,
            kind,
            publisher=self._outbox.open,
            busy=busy,
            progress=progress or (lambda _: None),
            failed_log=self._outbox.failed_log if is_failed(queue) else None,
        )
        if not await migration.is_needed():
            return 0
        # A mark that it is we who paused it, also for whoever finishes what was broken off.
        ours, paused = f"~migrating.{queue}", await self._marks.paused()
        if queue not in paused:
            await self.pause(ours, by="palermo migrate")
            await self.pause(queue, by="palermo migrate")
        moved = await migration.run()
        self._declarer.forget(queue)
        if queue not in paused or ours in paused:
            await self.resume(queue, by="palermo migrate")
            await self.resume(ours, by="palermo migrate")
        return moved

    async def delete(self, queue: str) -> int:
        count = await self._removal.delete(queue)
        await self.events.deleted(queue)
        return count

    async def limits(self) -> list[LimitInfo]:
        return await self._limits.known()

    async def diagnose(self) -> list[Finding]:
        await self._adoption.done()
        from palermo.brokers.rabbitmq.diagnosis import Diagnosis

        return await Diagnosis(self._session, self._link, self._registry).run()

    async def lost(self) -> BrokerError:
        links = [self._link, await self._consume_link()]
        waiting = [asyncio.ensure_future(link.lost.wait()) for link in links]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        error = next(link.error for link in links if link.error is not None)
        if self._closed:
            await asyncio.get_running_loop().create_future()
        return error if isinstance(error, BrokerError) else BrokerUnavailable(str(error))

    async def close(self) -> None:
        self._closed = True
        links = [self._link] if self._consuming is None else [self._consuming, self._link]
        try:
            await self._timekeeper.close()
            await self._adoption.done()
        finally:
            # Both at once: of two that are silent, the second must not wait for the first.
            await asyncio.gather(*(link.close() for link in links))

    @property
    def blocked(self) -> bool:
        return self._link.blocked

    def describe(self) -> str:
        alarm = ", which blocks publishers: its memory or disk alarm is raised" if self.blocked else ""
        return f"RabbitMQ {self._link.version} at {self._link.where}, exchange {self._exchange}{alarm}"

    # -- names ----------------------------------------------------------------------------------

    def _declarer_on(self, link: Link) -> Declarer:
        adoption = self._adoption
        return Declarer.of(self._session, link, register=adoption.register, adopt=adoption.adopt, wiring=self._wiring)

    async def _open_publisher(self) -> Publisher:
        return await self._outbox.open()

    # -- consuming -------------------------------------------------------------------------------

    async def _consume_link(self) -> Link:
        async with self._opening:
            if self._consuming is None:
                self._consuming = await open_link(self._session, self._session.name)
            return self._consuming
