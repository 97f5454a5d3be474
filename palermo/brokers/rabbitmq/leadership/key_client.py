"""One session's requests about keys of unique jobs: asks the leader, and records how runs have ended."""

import asyncio
import logging
import sys
import uuid
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from msgspec.structs import replace

from palermo.brokers.features.portions import portions
from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.publisher import RecordQueue
from palermo.brokers.rabbitmq.browsing.sweep import Reader, ids_in
from palermo.brokers.rabbitmq.cluster.facts import UNIQUE_JOB, Facts
from palermo.brokers.rabbitmq.leadership import operations
from palermo.brokers.rabbitmq.leadership.operations import AsJson
from palermo.brokers.rabbitmq.leadership.work import Ask
from palermo.brokers.rabbitmq.publishing.end_writer import EndWriter
from palermo.brokers.rabbitmq.publishing.job_destinations import TenantQueue, tenant_queue_name
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.brokers.rabbitmq.seconds import AGAIN, PATIENCE
from palermo.brokers.rabbitmq.unique import orphaned_keys as looking
from palermo.brokers.rabbitmq.unique.run_ends import RunEnd, key_queue
from palermo.contract import clock
from palermo.contract.admission import KeyReport
from palermo.contract.broker import Delivery, KeyPage, OrphanedKey, SessionParameters, check_bodies
from palermo.contract.scheduled import ScheduledFilter
from palermo.contract.unique_jobs import UniqueJob
from palermo.core import unique_rules
from palermo.core.message import MAX_BODY, Message
from palermo.core.topology import CLASSIC, amqp_queue, is_failed
from palermo.core.unique_keys import Key, KeyRequest, key_names, lock_of
from palermo.core.unique_rules import EnqueueAnswer, StartAnswer
from palermo.core.workflow import step_of
from palermo.core.workflow_rules import is_member
from palermo.errors import BrokerUnavailable, LeaderUnavailable, PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Maximum number of claims in one request and bytes of their bodies, and of concurrent requests of one call.
_AT_ONCE, _BYTES, _UNDER_WAY = 200, 4 * 1024 * 1024, 3

#: Number of keys in one request. The leader is blocked in the meantime: 1,000 keys take about 8 ms.
_PAGE = 1_000


class RabbitmqKeys:
    """See palermo.contract.broker.UniqueKeys; the other methods are for the session's other parts."""

    def __init__(
        self,
        session: SessionParameters,
        connection: Connection,
        outbox: Outbox,
        ask: Ask,
        reading: Callable[[], Awaitable[Connection]],
        running_workflows: looking.RunningWorkflows,
        why_silent: Callable[[], Awaitable[LeaderUnavailable | None]] | None = None,
        facts: Facts | None = None,
    ) -> None:
        """`reading` returns the connection for reading. Without `facts` no job can be announced.

        Without `why_silent` (LeaderClient.why_silent) a silent leader is not detected.
        """
        self._session = session
        self._exchange = session.exchange
        self._connection = connection
        self._outbox = outbox
        self._ask = ask
        self._why_silent = why_silent
        self._reading = reading
        arguments = versions.arguments(session.queue_type, connection.version)
        self._log = RecordQueue(key_queue(session.exchange), connection, outbox.open, arguments)
        self._facts = facts
        self._running_workflows = running_workflows
        self._ends = EndWriter(self._log, connection, outbox, session.timeout)

    async def enqueue(self, claims: Sequence[KeyRequest]) -> list[EnqueueAnswer]:
        check_bodies(claims)
        # While the leader stores one batch, the next one is sent.
        under_way, answers = deque[asyncio.Task[list[EnqueueAnswer]]](), list[EnqueueAnswer]()
        try:
            for some in portions(claims, most=_AT_ONCE, most_size=_BYTES, size=lambda claim: len(claim.message.body)):
                under_way.append(
                    asyncio.ensure_future(self._ask(operations.EnqueueUnique([AsJson(claim) for claim in some])))
                )
                while len(under_way) >= _UNDER_WAY:
                    answers += await under_way.popleft()
            while under_way:
                answers += await under_way.popleft()
        finally:
            for task in under_way:
                task.cancel()
            if under_way:
                await asyncio.wait(under_way)
        return answers

    async def known(self) -> list[Key]:
        return list((await self.page("", offset=0, limit=sys.maxsize)).keys)

    async def page(self, text: str, *, offset: int, limit: int) -> KeyPage:
        if not await self.exist():
            return KeyPage(keys=(), total=0)
        some = await self._ask(operations.ListKeys(text, offset, min(_PAGE, limit)))
        total, found = some.total, [key.value for key in some.keys]
        while len(some.keys) == _PAGE and len(found) < limit:
            # By the last name and not by its position, because keys come and go in the meantime.
            some = await self._ask(operations.ListKeys(text, 0, min(_PAGE, limit - len(found)), found[-1].name))
            found += [key.value for key in some.keys]
        return KeyPage(keys=tuple(found), total=total)

    async def why_silent(self) -> LeaderUnavailable | None:
        return None if self._why_silent is None else await self._why_silent()

    async def find(self, name: str) -> Key | None:
        found = (await self._find([name])).get(name)
        return found if found is not None and found.is_shown() else None

    async def as_they_run(self, messages: list[Message], *, max_body: int = MAX_BODY) -> list[Message]:
        """These waiting messages, with the arguments that they will run with."""
        return unique_rules.as_they_run(messages, await self._find(key_names(messages)), max_body=max_body)

    async def _find(self, names: Sequence[str]) -> dict[str, Key]:
        """The existing keys with these names."""
        found = dict[str, Key]()
        while names and await self.exist():
            page = await self._ask(operations.FindKeys(list(names[:_PAGE])))
            found.update((key.value.name, key.value) for key in page.keys)
            names = names[max(1, page.total) :]
        return found

    async def free(self, names: Iterable[str]) -> list[str]:
        return await self._ask(operations.FreeKeys(list(names))) if await self.exist() else []

    async def orphaned(self) -> list[OrphanedKey]:
        first = await self._suspects()
        if not first:
            return []
        await asyncio.sleep(AGAIN)
        second = await self._suspects()
        return sorted((second[one] for one in second if one in first), key=lambda stray: stray.key)

    async def announce(self, jobs: Iterable[str], unique: Iterable[UniqueJob]) -> None:
        assert self._facts is not None
        known, wanted = await self.announced(), {one.name: one for one in unique}
        # Only changes, so that the stream grows with changes of the code rather than with every start.
        for one in wanted.values():
            if known.get(one.name) != one:
                await self._facts.put(UNIQUE_JOB, one.name, one.to_plain())
        for name in sorted((known.keys() & set(jobs)) - wanted.keys()):
            await self._facts.remove(UNIQUE_JOB, name)

    async def announced(self) -> dict[str, UniqueJob]:
        assert self._facts is not None
        return (await self._facts.read(await self._reading())).unique_jobs

    async def exist(self) -> bool:
        """Whether any job here has ever needed a key. If not, the leader need not be asked."""
        return await self._log.exists(await self._reading())

    async def start(self, delivery: Delivery, *, worker: str, again: bool) -> StartAnswer:
        """Whether a job may be started. Waits for the leader's answer as long as the session lasts.

        `again` says that this message was delivered before, and that no worker runs the job any more.
        """
        start = operations.StartJob.of(delivery.message, worker=worker, run=uuid.uuid4().hex, again=again)
        while True:
            try:
                started = await self._ask(start)
                content = None if started.content is None else started.content.value
                return replace(started.answer, content=content)
            except BrokerUnavailable as error:
                if self._connection.error is not None:
                    raise
                log.warning(
                    "waiting for the leader to confirm the key of a job id=%s error=%r", delivery.message.id, str(error)
                )
                await asyncio.sleep(AGAIN)

    async def record_end(self, message: Message, report: KeyReport) -> None:
        """Record the end of a run; returns once it is stored, which may take as long as an alarm."""
        await (await self.send_end(message, report))

    async def send_end(self, message: Message, report: KeyReport) -> Awaitable[None]:
        """Send the end of a run. Returns an awaitable for its storage. Raises BrokerUnavailable."""
        lock = lock_of(message)
        assert lock is not None
        end = RunEnd(
            key=lock.key,
            id=message.id,
            how=report.how,
            serial=report.serial,
            starts=report.starts,
            run_at=report.run_at,
            at=clock.now(),
        )
        return await self._ends.send(message.id, end.encode())

    async def gate(self, queue: str, jobs: list[tuple[Message, Message | None]]) -> list[bool]:
        """Whether each of these jobs may leave the queue. Removed jobs lose their keys; requeued ones get theirs again.

        A moved job's key gets the new queue and due time, since it would count as orphaned with the old ones. Each job
        comes with the message that replaces it, or with None to remove it.
        """
        away = [there for there, put in jobs if put is None and not is_failed(queue)]
        back = [put for _, put in jobs if put is not None and not is_failed(put.queue) and lock_of(put) is not None]
        await self.leaving(away)
        if not back:
            return [True] * len(jobs)
        may = await self._ask(operations.ReadmitJobs([AsJson(_bare(one)) for one in back]))
        refused = {id(one) for one, allowed in zip(back, may, strict=True) if not allowed}
        return [put is None or id(put) not in refused for _, put in jobs]

    async def leaving(self, jobs: Iterable[Message], *, drop_next: bool = False) -> None:
        """Free the keys of these jobs, which are about to be removed. Running jobs keep theirs.

        With `drop_next` the jobs that would follow them are removed too.
        """
        locks = [(lock.key, job.id) for job in jobs if (lock := lock_of(job)) is not None]
        if locks and await self.exist():
            await self._ask(operations.RemoveJobs(locks, drop_next))

    async def cancelled(self, ids: Iterable[str]) -> None:
        """Notify the leader that these jobs were cancelled, so that those still waiting won't run."""
        if await self.exist():
            await self._ask(operations.CancelJobs(list(ids)))

    async def _suspects(self) -> looking.Suspects:
        """The keys whose holders are in no queue, not scheduled, and with no worker.

        If a queue must not be read, its keys' holders count as present, unless the queue is empty.
        """
        reading = await self._reading()
        held = {key.name: key.holder for key in await self.known() if key.holder is not None}
        left = {name: holder for name, holder in held.items() if holder.until is None}
        seen: set[str] = set()
        for queue in {holder.queue for holder in left.values()}:
            name = amqp_queue(self._exchange, queue)
            if (await reading.probe(name)).ready and await self._outbox.declarer.ensure(queue) != CLASSIC:
                left = {key: holder for key, holder in left.items() if holder.queue != queue}
                continue
            tenants = {one.tenant for one in left.values() if one.queue == queue and one.tenant}
            if tenants:
                await self._ask(operations.RequeueTenantJobs(queue))
            # A job that is moved in the meantime is in its job queue by the time that queue is read.
            places = [tenant_queue_name(self._exchange, TenantQueue(queue, tenant)) for tenant in sorted(tenants)]
            for place in [*places, name]:
                seen |= await ids_in(Reader(reading, self._exchange, name=place, only_look=True))
        ids = frozenset(holder.id for holder in left.values()) - seen
        if not ids:
            return {}
        later = await self._ask(operations.ListScheduled(ScheduledFilter(ids=ids), 0, len(ids)))
        seen |= {message.value.id for message in later.messages}
        running = await looking.running(self._exchange, self._connection)
        found = looking.without(left, None if running is None else running | seen)
        workflows = await self._running_workflows([one.id for one in found.values()])
        return {one: stray for one, stray in found.items() if stray.id not in workflows}


def _bare(message: Message) -> Message:
    """A message without its body, which decisions about its key don't need."""
    return replace(message, body=b"", failure=None, attempts=())


#: Maximum number of one slot's pending ends; more for ends of map members, which are stored together. Below 32, a
#: quorum queue applies their acknowledgements even if the channel is closed next (see consuming/consumer.py).
_MOST, _MOST_MEMBERS = 4, 30


class PendingEnds:
    """Sends the ends of jobs to the leader's ledgers, and acknowledges each job once its end is stored.

    A slot continues with its next job in the meantime, unless the job needs the same key, or too many of the slot's
    ends are pending.
    """

    def __init__(self, acknowledge: Callable[[Delivery], None], requeue: Callable[[Delivery], None]) -> None:
        """`acknowledge` is called with a delivery whose end is stored; it may raise DeliveryLost.

        `requeue` is called with a delivery whose end was not stored, since the delivery would block its slot.
        """
        self._acknowledge = acknowledge
        self._requeue = requeue
        #: The slot and the key of each pending end, and the number of each slot's pending ends.
        self._sent: dict[asyncio.Future[None], tuple[int, str]] = {}
        self._count = Counter[int]()

    def has_room(self, delivery: Delivery) -> bool:
        """Whether the end of this job may be sent now."""
        if self._count[delivery.slot] < _MOST:
            return True
        step = step_of(delivery.message.extra)
        return step is not None and is_member(step[1]) and self._count[delivery.slot] < _MOST_MEMBERS

    async def room(self, delivery: Delivery) -> None:
        """Wait until the end of this job may be sent."""
        while not self.has_room(delivery):
            await asyncio.wait(self._of(lambda slot, _: slot == delivery.slot), return_when=asyncio.FIRST_COMPLETED)

    def add(self, delivery: Delivery, stored: Awaitable[None]) -> None:
        """Acknowledge this delivery once the end of its job is `stored`."""
        sent, lock = asyncio.ensure_future(stored), lock_of(delivery.message)
        self._sent[sent] = delivery.slot, "" if lock is None else lock.key
        self._count[delivery.slot] += 1
        sent.add_done_callback(partial(self._on_stored, delivery))

    async def over(self, delivery: Delivery) -> None:
        """Wait until no end of a job with the same key is pending."""
        lock = lock_of(delivery.message)
        if self._sent and lock is not None and (before := self._of(lambda _, key: key == lock.key)):
            await asyncio.wait(before)

    async def close(self) -> None:
        """Wait for the pending ends, for a limited time."""
        if self._sent:
            _, late = await asyncio.wait(set(self._sent), timeout=PATIENCE)
            for stored in late:
                stored.cancel()

    def _of(self, wanted: Callable[[int, str], bool]) -> "list[asyncio.Future[None]]":
        return [stored for stored, (slot, key) in self._sent.items() if wanted(slot, key)]

    def _on_stored(self, delivery: Delivery, stored: "asyncio.Future[None]") -> None:
        del self._sent[stored]
        self._count[delivery.slot] -= 1
        if stored.cancelled():
            return
        try:
            stored.result()
            self._acknowledge(delivery)
        except PalermoError as error:
            self._requeue(delivery)
            log.warning(
                "end of a job not stored, it may run again id=%s job=%s error=%r",
                delivery.message.id,
                delivery.message.job,
                str(error),
            )
