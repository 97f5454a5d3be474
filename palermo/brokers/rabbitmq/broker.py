"""One session with RabbitMQ as the broker."""

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import cast

from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp.alarms import find_alarm, find_limit, trouble_of
from palermo.brokers.rabbitmq.amqp.publisher import MissingQueues, Publisher
from palermo.brokers.rabbitmq.amqp.replies import Probe
from palermo.brokers.rabbitmq.browsing.job_search import search
from palermo.brokers.rabbitmq.cluster.cancels import CancelMarks
from palermo.brokers.rabbitmq.cluster.facts import Facts
from palermo.brokers.rabbitmq.cluster.worker_control import WorkerControl, WorkerReports, command_workers
from palermo.brokers.rabbitmq.connections import Connections, open_connections
from palermo.brokers.rabbitmq.consuming.silent_workers import SilentWorkers
from palermo.brokers.rabbitmq.events import RabbitmqEvents
from palermo.brokers.rabbitmq.journal import StreamJournal
from palermo.brokers.rabbitmq.leadership import operations
from palermo.brokers.rabbitmq.leadership.key_client import RabbitmqKeys
from palermo.brokers.rabbitmq.leadership.leader_client import LeaderClient, Permits
from palermo.brokers.rabbitmq.leadership.operations import AsJson
from palermo.brokers.rabbitmq.leadership.tenant_client import TenantClient
from palermo.brokers.rabbitmq.leadership.workflow_client import RabbitmqWorkflows
from palermo.brokers.rabbitmq.publishing.declarer import QueueRegistration
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.brokers.rabbitmq.queue_contents import QueueContents
from palermo.contract.broker import (
    Broker,
    Consumer,
    Finding,
    Overview,
    Page,
    QueueInfo,
    SessionParameters,
    ignore_count,
)
from palermo.contract.finding import FoundJobs
from palermo.contract.recurring_entries import EntryChange, RecurringEntry
from palermo.contract.scheduled import AlteredJob, OnJobs, ScheduledFilter, ScheduledPage, filter_for, ignore_jobs
from palermo.contract.sweep import SweepDecision, SweepProgress
from palermo.contract.tasks import together
from palermo.contract.trouble import Trouble
from palermo.contract.worker_info import CommandReply, OnCommand, WorkerCommand, WorkerInfo, WorkerList, ignore_command
from palermo.core.election import Duty
from palermo.core.job_edit import JobEdit
from palermo.core.limits import LimitInfo
from palermo.core.message import MAX_BODY, Message
from palermo.core.queue_selection import PausedQueues, QueueSelection
from palermo.core.topology import FAILED_QUEUE, internal, is_failed
from palermo.errors import BrokerBlocked, BrokerError, BrokerRefused

log = logging.getLogger("palermo.rabbitmq")

#: Maximum number of channels, besides the slots', of a worker's consuming connection.
_OTHER_CHANNELS = 40

#: Number of entries of the log of failed jobs that are checked for readability.
_EXAMINED = 20_000

#: Up to this number of slots each ack is sent immediately, so that RabbitMQ has work while the worker handles the
#: others; with more, the acks of one turn of the loop are sent together. Both measured by benchmarks.drain.
_FEW_SLOTS = 4


async def open_rabbitmq(session: SessionParameters) -> "RabbitmqBroker":
    """Open a session. The entry points `amqp` and `amqps` of `palermo.brokers` name this function."""
    return RabbitmqBroker(session, await open_connections(session))


class RabbitmqBroker:
    """See palermo.contract.broker.Broker."""

    def __init__(self, session: SessionParameters, connections: Connections) -> None:
        self._session = session
        self._exchange = session.exchange
        self._connections = connections
        connection = self._connection = connections.publishing
        reading = connections.to_consume
        self._facts = Facts(self._exchange, connection, self._open_publisher, patience=session.timeout)
        self._cancels = CancelMarks(self._exchange, connection, self._open_publisher, patience=session.timeout)
        self._missing = MissingQueues(connection)
        self._worker_reports = WorkerReports(connection, reading, self._exchange, self._missing)
        self._silent_workers = SilentWorkers(self._exchange, self._open_publisher, reading, kind=session.queue_type)
        self._registration = QueueRegistration(session, self._facts, connections)
        declarer_on = self._registration.declarer
        self._outbox = Outbox(session, connection, declarer_on(connection))
        self.try_publish = self._outbox.try_publish
        self._leader_client = LeaderClient(session, connection, declarer_on, self.workers, self._open_publisher)
        ask, why_silent = self._leader_client.ask, self._leader_client.why_silent
        self.workflows = RabbitmqWorkflows(session, connection, self._outbox, ask, reading)
        running = self.workflows.running
        self.keys = RabbitmqKeys(session, connection, self._outbox, ask, reading, running, why_silent, self._facts)
        self.tenants = TenantClient(self._exchange, reading, self._outbox, self._leader_client, self._leaving)
        self.journal = StreamJournal(session, connection, reading)
        self.events = RabbitmqEvents(
            session, connection, self._registration.wiring, declarer_on(connection), self._outbox, self._facts, reading
        )
        self._contents = QueueContents(
            session,
            connections,
            self._registration,
            self._outbox,
            self._facts,
            self._cancels,
            keys=self.keys,
            tenants=self.tenants,
            workflows=self.workflows,
        )

    async def publish(self, message: Message) -> None:
        await self._outbox.publish(message, message.queue)

    async def publish_many(
        self,
        messages: Iterable[Message],
        stored: Callable[[int], None] = ignore_count,
    ) -> int:
        return await self._outbox.publish_many(messages, stored=stored)

    async def consume(
        self,
        selection: QueueSelection,
        *,
        slots: int,
        tag: str,
        report: Callable[[], WorkerInfo],
        on_command: OnCommand = ignore_command,
        prefetch: int = 1,
    ) -> Consumer:
        # A program that only enqueues need not import these. benchmarks.idle import: 195 ms of CPU, 226 with them.
        from palermo.brokers.rabbitmq.consuming.consumer import RabbitmqConsumer
        from palermo.brokers.rabbitmq.consuming.poll import PollSource
        from palermo.brokers.rabbitmq.consuming.push import PushSource
        from palermo.brokers.rabbitmq.consuming.queue_order import FullQueues
        from palermo.brokers.rabbitmq.consuming.run_log import CrashHistory, RunLog
        from palermo.brokers.rabbitmq.consuming.steering import Steering

        connection = await self._connections.to_consume()
        most = connection.raw.params.channel_max
        if most and slots > most - _OTHER_CHANNELS:
            raise BrokerRefused(
                f"a worker needs a channel for each of its {slots:,} slots, and RabbitMQ at {connection.where} allows"
                f" {most:,} on a connection. Use at most {most - _OTHER_CHANNELS:,} slots (-c) and start more workers,"
                " or raise channel_max in rabbitmq.conf."
            )
        connection.raw.acks_together = slots > _FEW_SLOTS
        declarer = self._registration.declarer(connection)

        def slot_tag(slot: int) -> str:
            return f"{tag}/worker-{slot}"

        source: PushSource | PollSource
        if selection.fixed and len(selection.patterns) == 1:
            queue = selection.patterns[0]
            source = PushSource(
                connection, declarer, self._exchange, queue, slots=slots, tag=slot_tag, prefetch=prefetch
            )
        else:
            if prefetch > 1:
                log.info("prefetch is 1, because this worker serves several queues queues=%s", selection)
            source = PollSource(connection, declarer, self._facts, self._exchange, selection, slots=slots, tag=slot_tag)
        steering = Steering(
            self._facts,
            self._cancels,
            connection,
            on_command=on_command,
            pause=source.pause,
            held=lambda: consumer.held(),
        )
        worker_control = WorkerControl(
            connection,
            self._exchange,
            report,
            on_command,
            self._outbox.open,
            steering.look,
            source.waiting,
            lambda: [delivery.message.id for delivery in consumer.held()],
            kind=self._session.queue_type,
        )
        run_log = RunLog(self._exchange, report, self._outbox.open, connection, inbox=worker_control.inbox)
        consumer = RabbitmqConsumer(
            source,
            worker_control,
            self._exchange,
            steering,
            lambda message, queue: self._outbox.publish(message, queue, patient=True),
            self._outbox.destinations.failed_place,
            run_log=run_log,
            crash_history=CrashHistory(run_log, connection, self._worker_reports.ask),
            full_queues=FullQueues(connection, self._exchange, declarer.is_foreign),
            keys=self.keys,
            permits=Permits(self._leader_client, worker_control.worker),
            workflows=self.workflows,
        )

        try:
            await together(source.prepare(), steering.begin(), worker_control.begin())
        except BaseException:
            await steering.close()
            raise
        return consumer

    async def queues(self) -> list[QueueInfo]:
        return (await self.overview()).queues

    async def overview(self) -> Overview:
        await self._registration.done()
        # First, since the calls below don't wait for blocked operations during a known alarm.
        alarm = await self._find_alarm()
        (paused, probes), of_tenants, workers, limit = await together(
            self._probe_all(), self._tenant_totals(), self.workers(), self._find_limit()
        )
        serving = Counter(worker.queues for worker in workers if not worker.is_silent)
        return Overview.of(
            {
                name: (probe.messages if probe.exists else 0) + of_tenants.get(name, 0)
                for name, probe in probes.items()
                if probe.exists or name in paused.names
            },
            in_progress=Counter(job.queue for worker in workers for job in worker.jobs),
            selections=((QueueSelection.parse(text), count) for text, count in serving.items()),
            workers=workers,
            paused=paused,
            consumers={name: probe.consumers for name, probe in probes.items() if probe.exists},
            trouble=alarm or limit or self._worker_reports.trouble,
        )

    async def _leaving(self, jobs: list[Message], *, drop_next: bool) -> None:
        await self.keys.leaving(jobs, drop_next=drop_next)
        await self.workflows.leaving(jobs)

    async def _tenant_totals(self) -> Mapping[str, int]:
        """By job queue, the number of jobs in its tenants' queues; empty if the leader doesn't answer."""
        try:
            return await self.tenants.totals()
        except (BrokerBlocked, BrokerRefused):
            return {}

    async def _probe_all(self) -> tuple[PausedQueues, dict[str, Probe]]:
        """The paused queues, and the state in RabbitMQ of these and all registered queues, by name."""
        connection = await self._connections.to_consume()
        known = await self._facts.read(connection)
        names, paused = known.queues, known.paused
        # Names that start with ~ are marks of migrations, see `migrate`.
        paused = replace(paused, names=frozenset(name for name in paused.names if not name.startswith("~")))
        shown = sorted(name for name in names | {FAILED_QUEUE} | paused.names if not name.startswith("~"))
        return paused, await self._facts.probe(connection, shown)

    async def workers(self) -> WorkerList:
        return await self._silent_workers.add_to(await self._worker_reports.ask())

    async def command(self, command: WorkerCommand, *, timeout: float = 5.0) -> list[CommandReply]:
        return await command_workers(self._connection, self._exchange, command, timeout=timeout)

    async def pause(self, queue: str, *, by: str = "") -> None:
        await self._facts.pause(queue, by)

    async def resume(self, queue: str, *, by: str = "") -> None:
        await self._facts.resume(await self._connections.to_consume(), queue)

    async def all_paused(self) -> bool:
        return (await self._paused()).every

    async def _paused(self) -> PausedQueues:
        return (await self._facts.read(await self._connections.to_consume())).paused

    async def cancel(self, ids: Iterable[str], *, by: str = "", created_at: int | None = None) -> Sequence[str]:
        chosen = list(ids)
        steps = await self.workflows.cancel(chosen)
        chosen += steps
        await self._cancels.cancel(chosen, by, created_at)
        await self.keys.cancelled(chosen)
        return steps

    async def restore(self, ids: Iterable[str]) -> None:
        await self._contents.restore(ids)

    async def browse(
        self, queue: str, *, offset: int = 0, limit: int = 100, newest: bool = False, max_body: int = MAX_BODY
    ) -> Page:
        return await self._contents.browse(queue, offset=offset, limit=limit, newest=newest, max_body=max_body)

    async def find(
        self, ids: Collection[str], *, queue: str = "", failed: bool = True, beginnings: bool = False
    ) -> FoundJobs:
        found = await search(cast(Broker, self), ids, queue=queue, failed=failed, beginnings=beginnings)
        return replace(found, jobs=tuple(await self.workflows.with_workflows(found.jobs, ids, failed=failed)))

    async def sweep(
        self,
        queue: str,
        decide: Callable[[Message], SweepDecision],
        *,
        progress: Callable[[SweepProgress], None] | None = None,
        only_look: bool = False,
        ids: Collection[str] = (),
        most: int | None = None,
    ) -> SweepProgress:
        report_progress = progress or (lambda _: None)
        return await self._contents.sweep(queue, decide, report_progress, only_look=only_look, ids=ids, most=most)

    async def run_scheduler(self, fired: OnJobs = ignore_jobs) -> None:
        await self._leader_client.lead_or_stand_by(fired)

    @property
    def duties(self) -> tuple[Duty, ...]:
        return self._leader_client.duties

    async def scheduled(self, chosen: ScheduledFilter, *, offset: int = 0, limit: int = 100) -> ScheduledPage:
        found = await self._leader_client.ask(operations.ListScheduled(chosen, offset, limit))
        if not found.messages:
            return ScheduledPage(messages=(), total=found.total)
        marks = await self._cancels.read(await self._connections.to_consume())
        messages = tuple(await self.keys.as_they_run([message.value for message in found.messages]))
        cancelled = frozenset(one.id for one in messages if marks.find(one))
        return ScheduledPage(messages=messages, total=found.total, cancelled=cancelled)

    async def scheduled_progress(self) -> tuple[int, int] | None:
        return await self._leader_client.listing_progress()

    async def alter_scheduled(
        self, chosen: ScheduledFilter, action: str, *, at: float | None = None, failed_per_queue: bool = False
    ) -> list[AlteredJob]:
        return await self._leader_client.ask(
            operations.AlterScheduled(filter_for(chosen, action), action, at, failed_per_queue=failed_per_queue)
        )

    async def edit_scheduled(self, id: str, edit: JobEdit) -> list[AlteredJob]:
        return await self._leader_client.ask(operations.EditScheduled(id, AsJson(edit)))

    async def recurring(self) -> list[RecurringEntry]:
        connection = await self._connections.to_consume()
        if not (await self._missing.probe(connection, internal(self._exchange, "recurring"))).exists:
            return []  # no leader is needed
        return [entry.value for entry in await self._leader_client.ask(operations.ListRecurring())]

    async def change_recurring(self, change: EntryChange) -> None:
        await self._leader_client.ask(operations.ChangeRecurring(AsJson(change)))

    async def purge(self, queue: str) -> int:
        return await self._contents.purge(queue)

    async def migrate(self, queue: str, kind: str, *, progress: Callable[[SweepProgress], None] | None = None) -> int:
        if self._registration.wiring.is_group(queue):
            raise BrokerRefused(
                f"queue {queue!r} belongs to a group that subscribes to events, so its type cannot change."
            )

        async def running() -> int | None:
            workers = await self.workers()
            return sum(job.queue == queue for each in workers for job in each.jobs) if workers.complete else None

        from palermo.brokers.rabbitmq.migration import Migration

        migration = Migration(
            await self._connections.to_consume(),
            self._exchange,
            queue,
            kind,
            publisher=self._outbox.open,
            running=running,
            progress=progress or (lambda _: None),
            failed_log=self._outbox.failed_log if is_failed(queue) else None,
        )
        needed = await migration.is_needed()
        # A pause of this name records that a migration paused the queue. A call that continues an interrupted
        # migration needs it, to decide whether to resume the queue at the end.
        ours, paused = f"~migrating.{queue}", (await self._paused()).names
        if needed and queue not in paused:
            await self.pause(ours, by="palermo migrate")
            await self.pause(queue, by="palermo migrate")
        moved = await migration.run() if needed else 0
        self._contents.forget(queue)
        if (needed and queue not in paused) or ours in paused:
            await self.resume(queue, by="palermo migrate")
            await self.resume(ours, by="palermo migrate")
        return moved

    async def delete(self, queue: str) -> int:
        count = await self._contents.delete(queue)
        await self.events.deleted(queue)
        return count

    async def limits(self) -> list[LimitInfo]:
        return await self._leader_client.ask(operations.ListLimits())

    async def diagnose(self) -> list[Finding]:
        await self._registration.done()
        from palermo.brokers.rabbitmq.diagnosis import Diagnosis

        connection = await self._connections.to_consume()
        return await Diagnosis(self._session, connection, self._facts, self.workflows, self._unreadable).run()

    async def _unreadable(self) -> Mapping[str, int]:
        """Number of unreadable records found by this session and the workers, by stream or queue.

        Records in the history are not counted.
        """
        connection = await self._connections.to_consume()
        await together(
            self._facts.read(connection),
            self._cancels.read(connection),
            self._silent_workers.read_run_log(set()),
            self.journal.examine(),
        )
        await self._outbox.failed_log.known(connection, FAILED_QUEUE, most=_EXAMINED)
        return (await self._worker_reports.ask()).unreadable

    async def lost(self) -> BrokerError:
        return await self._connections.lost()

    @property
    def is_lost(self) -> bool:
        return self._connections.is_lost

    async def close(self) -> None:
        try:
            await self._leader_client.close()
            await self._registration.done()
        finally:
            await self._connections.close()

    @property
    def trouble(self) -> Trouble | None:
        return trouble_of(self._connection) or self._worker_reports.trouble

    async def find_trouble(self) -> Trouble | None:
        found = await self._find_alarm() or await self._find_limit()
        if found is None:
            await self._worker_reports.ask()
        return found or self._worker_reports.trouble

    async def _find_alarm(self) -> Trouble | None:
        return await find_alarm(self._connection, internal(self._exchange, "nowhere"))

    async def _find_limit(self) -> Trouble | None:
        queue = internal(self._exchange, f"check.{secrets.token_hex(6)}")
        return await find_limit(await self._connections.to_consume(), queue)

    def describe(self) -> str:
        version = self._connection.version
        return f"RabbitMQ{version and f' {version}'} at {self._connection.where}, exchange {self._exchange}"

    def after_failure(self) -> SessionParameters:
        return replace(self._session, address=self._session.address.after(self._connection.host))

    async def _open_publisher(self) -> Publisher:
        return await self._outbox.open()
