"""The part of the leader that decides about all keys of unique jobs, one request after another.

Requests that arrive while a batch is being stored go into the next batch, so that one commit serves many. A request is
answered once the state in the answer is stored. Two common cases need no batch: when a job starts, the leader records
its run and sends the answer on the same channel, in that order; when its run ends, the worker has already written the
end into the ledger.

The keys are in memory. After any error they are read again from the ledger.
"""

import asyncio
import logging
import sys
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from msgspec import Struct

from palermo.brokers.rabbitmq.amqp.connection import Channel, Connection
from palermo.brokers.rabbitmq.publishing.ledger import Ledger, Report, Table
from palermo.brokers.rabbitmq.publishing.outbox import Outbox
from palermo.brokers.rabbitmq.publishing.turns import take_turns
from palermo.brokers.rabbitmq.seconds import LOOK_EVERY, TIDY_EVERY
from palermo.brokers.rabbitmq.unique.known_keys import CODED_AT_ONCE, KeyChanges, KnownKeys, in_turns
from palermo.brokers.rabbitmq.unique.run_ends import RunEnd, key_queue
from palermo.contract.broker import KeyPage
from palermo.contract.clock import seconds_until
from palermo.core import unique_rules
from palermo.core.message import Message
from palermo.core.unique_keys import Key, KeyRequest, Phase, lock_of
from palermo.core.unique_rules import EnqueueAnswer, EnqueueOutcome, KeyUpdate, RunOutcome, StartAnswer, StartReason
from palermo.errors import BrokerUnavailable, PalermoError, PublishRefused

log = logging.getLogger("palermo.rabbitmq")

T = TypeVar("T")

#: Seconds after a run was permitted during which another copy of its job is not started: the requesting worker may have
#: asked the others before they could report that run.
_YOUNG = 2.0

#: Maximum number of requests in one batch, and bytes of bodies after which none is added.
_BATCH, _BATCH_BYTES = 500, 4 * 1024 * 1024

#: Bytes of arguments after which an answer ends.
_ANSWER_BYTES = 1024 * 1024


class Request(Struct, Generic[T]):
    """An action for a batch."""

    do: Callable[[KeyChanges], T]
    future: "asyncio.Future[T]"
    size: int = 0
    result: Any = None


class UniqueKeys:
    """Decides about the keys of unique jobs; see the module's docstring."""

    def __init__(
        self,
        exchange: str,
        connection: Connection,
        outbox: Outbox,
        arguments: Mapping[str, Any],
        answers: Channel,
        *,
        now: Callable[[], float],
    ) -> None:
        """`arguments` are those of the ledger's queue; the answers of `start_now` are sent on channel `answers`."""
        self._connection = connection
        self._queue = key_queue(exchange)
        table = Table(exchange, self._queue, arguments, Key.from_plain, drops_copies=True)
        self._ledger = Ledger(table, connection, outbox, beside=answers, on_report=self._on_report)
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._known = KnownKeys()
        #: Whether `_known` has the whole ledger, and the keys that the batch being stored changes.
        self._learnt = False
        self._changing: Collection[str] = ()
        #: Requests for the next batch.
        self._asked: list[Request[Any]] = []
        #: Held while a batch is stored.
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()
        self._tidied_at = self._loop.time()
        self._closed = False
        #: When runs were recently permitted, on the loop's clock, and when the ledger was read.
        self._allowed: dict[str, float] = {}
        self._learnt_at = 0.0
        #: The sorted names of all keys when a listing last began, so that its pages need not sort them again.
        self._listed: list[str] = []

    async def run(self) -> None:
        """Answer requests, and publish due jobs, until cancelled."""
        await take_turns(self._look, self._news, self._connection, "cannot tidy the keys of unique jobs")

    async def close(self) -> None:
        """Stop deciding, once the current batch is stored. Waiting requests fail with BrokerUnavailable."""
        self._closed = True
        async with self._turn:
            failed, self._asked = self._asked, []
        self._fail(failed, _leads_no_more())

    @property
    def _is_ready(self) -> bool:
        """Whether `_known` is correct, except for keys that a batch is changing now."""
        return self._learnt and self._ledger.is_open and not self._closed

    @property
    def knows(self) -> bool:
        """Whether this leader has read the ledger of keys."""
        return self._ledger.is_open

    # -- requests

    async def enqueue(self, claims: Sequence[KeyRequest]) -> list[EnqueueAnswer]:
        """See palermo.contract.broker.UniqueKeys."""
        answers = [await asked for asked in [self._enqueue(claim) for claim in claims]]
        if any(answer.outcome is EnqueueOutcome.DUPLICATE and answer.state == Phase.RUNNING for answer in answers):
            # After this the leader knows all ends of runs that were written before this request.
            await self._ledger.reach()
            again = [
                self._enqueue(claim)
                for claim, answer in zip(claims, answers, strict=True)
                if answer.outcome is EnqueueOutcome.DUPLICATE
            ]
            later = iter([await asked for asked in again])
            answers = [next(later) if answer.outcome is EnqueueOutcome.DUPLICATE else answer for answer in answers]
        return answers

    def start_now(self, message: Message, *, worker: str, run: str, again: bool) -> StartAnswer | None:
        """The answer to a worker that is about to start a job, if it needs no waiting; otherwise None.

        The caller sends it on the channel of the answers before it sends anything else there.
        """
        lock = lock_of(message)
        if lock is None or lock.key in self._changing or not self._is_ready or not self._ledger.is_swift:
            return None
        key = self._known.keys.get(lock.key)
        # As long as the ledger doesn't report a job as stored, it may be published again after a kill of the broker.
        if key is None or key.holder is None or message.id in self._ledger.unsure:
            return None
        step, answer = unique_rules.start(key, message, worker=worker, run=run, again=again, now=self._now())
        holder = step.key.holder
        # The job was running, and the end of that run may be on its way here.
        if again and key.holder.phase is Phase.RUNNING:
            return None
        if answer.why is not StartReason.RUN or step.jobs or holder is None or holder.serial != key.holder.serial:
            return None
        self._known.remember(step.key)
        self._ledger.note(lock.key, step.key)
        self._allow(run)
        return answer

    async def start(self, message: Message, *, worker: str, run: str, again: bool) -> StartAnswer:
        """The answer to a worker that is about to start a job, once the ends of earlier runs are known."""
        lock = lock_of(message)
        if lock is None:
            return StartAnswer(why=StartReason.RUN)
        name = lock.key

        def do(changes: KeyChanges) -> StartAnswer:
            key = changes.get(name)
            if again and self._is_young(key, message, run):
                return StartAnswer(why=StartReason.LATER)
            step, answer = unique_rules.start(key, message, worker=worker, run=run, again=again, now=changes.now)
            changes.put(step)
            if answer.why is StartReason.RUN:
                self._allow(run)
            return answer

        if again:
            # If its worker died before the acknowledgement, the end of its run may be stored: read that first.
            await self._catch_up()
        answer = await self._ask(do)
        if answer.why in (StartReason.COPY, StartReason.DUPLICATE):
            await self._ledger.reach()
            answer = await self._ask(do)
        return answer

    def _allow(self, run: str) -> None:
        now = self._loop.time()
        while self._allowed and now - next(iter(self._allowed.values())) > _YOUNG:
            del self._allowed[next(iter(self._allowed))]
        self._allowed.setdefault(run, now)

    def _is_young(self, key: Key, message: Message, run: str) -> bool:
        """Whether another run of this job was permitted too recently for its worker to have reported it."""
        holder = key.holder
        if holder is None or holder.id != message.id or holder.phase is not Phase.RUNNING or holder.run == run:
            return False
        return self._loop.time() - self._allowed.get(holder.run, self._learnt_at) < _YOUNG

    async def readmit(self, messages: Sequence[Message]) -> list[bool]:
        """Whether an operator may requeue or move each of these jobs. The permitted ones take their keys."""

        def do(changes: KeyChanges) -> list[bool]:
            may = []
            for message in messages:
                lock = lock_of(message)
                step, allowed = (
                    (None, True) if lock is None else unique_rules.readmit(changes.get(lock.key), message, changes.now)
                )
                if step is not None:
                    changes.put(step)
                may.append(allowed)
            return may

        if not all(may := await self._ask(do)):
            # The run that prevents a requeue may be over by now.
            await self._ledger.reach()
            may = await self._ask(do)
        return may

    async def workflow_changed(self, root: Message, how: RunOutcome) -> bool:
        """Free the key of a workflow that has ended, or take it for one that continues. Returns whether it may."""
        lock = lock_of(root)
        if lock is None:
            return True
        name = lock.key

        def do(changes: KeyChanges) -> bool:
            step, may = unique_rules.workflow_changed(changes.get(name), root, how, changes.now)
            changes.put(step)
            return may

        if not (may := await self._ask(do)):
            # The run that prevents it may be over by now.
            await self._ledger.reach()
            may = await self._ask(do)
        return may

    async def moved(self, jobs: Iterable[Message]) -> None:
        """Record the queues and due times to which these scheduled jobs are about to be moved."""
        keyed = {job.id: (lock.key, job) for job in jobs if (lock := lock_of(job)) is not None}
        if keyed:
            await self._change_waiting(
                lambda changes: ((changes.get(name), id) for id, (name, _) in keyed.items()),
                lambda key, id, now: unique_rules.job_moved(key, keyed[id][1], now),
            )

    async def removed(self, jobs: Iterable[tuple[str, str]], *, drop_next: bool) -> None:
        """Free the keys of jobs that are about to be removed, given as pairs of key and id. Running jobs keep theirs.

        With `drop_next` the jobs that would follow them are removed too.
        """
        named = list(jobs)
        remove = partial(unique_rules.job_removed, drop_next=drop_next)
        await self._change_waiting(lambda changes: ((changes.get(name), id) for name, id in named), remove)

    async def cancelled(self, ids: Iterable[str]) -> None:
        """Free the keys of these cancelled jobs. Running jobs keep theirs."""
        named = frozenset(ids)
        await self._change_waiting(lambda changes: changes.held_by(named), unique_rules.job_removed)

    async def _change_waiting(
        self,
        find: Callable[[KeyChanges], Iterable[tuple[Key, str]]],
        update: Callable[[Key, str, float], KeyUpdate],
    ) -> None:
        """Update the keys of waiting jobs. `find` returns the keys and the jobs' ids when the batch is made."""

        def do(changes: KeyChanges) -> bool:
            runs = False
            for key, id in find(changes):
                changes.put(update(key, id, changes.now))
                runs |= key.holder is not None and key.holder.id == id and key.holder.phase is Phase.RUNNING
            return runs

        if await self._ask(do):
            # A job that the leader considers running may be waiting again by now.
            await self._catch_up()
            await self._ask(do)

    async def free(self, names: Iterable[str]) -> list[str]:
        """See palermo.contract.broker.UniqueKeys."""

        def do(changes: KeyChanges) -> list[str]:
            there = [
                name
                for name in dict.fromkeys(names)
                if not unique_rules.current(changes.get(name), changes.now).is_free
            ]
            for name in there:
                changes.put(unique_rules.free(changes.get(name), now=changes.now))
            return there

        return await self._ask(do)

    async def free_orphans(self, orphans: Iterable[tuple[str, int]]) -> list[str]:
        """Free each key that still has the holder with this serial. Returns the names of the freed keys."""

        def do(changes: KeyChanges) -> list[str]:
            freed = []
            for name, serial in orphans:
                key = changes.get(name)
                # A refused job is in no queue now, but will be published from the ledger.
                if key.holder is not None and key.holder.serial == serial and key.holder.id not in self._ledger.refused:
                    changes.put(unique_rules.free(key, now=changes.now))
                    freed.append(name)
            return freed

        return await self._ask(do)

    async def page(self, text: str, *, offset: int, limit: int, after: str = "") -> KeyPage:
        """See palermo.contract.broker.UniqueKeys.

        With `after`, the page starts after that name. It then contains only keys that existed at the last call without
        `after`, and `total` is incomplete.
        """
        await self._catch_up()
        if not (after and self._listed):
            self._listed = sorted(self._known.keys)
        names, found, total = self._listed, list[Key](), 0
        async for some in in_turns(range(bisect_right(names, after), len(names))):
            for key in (self._current(names[number]) for number in some):
                if key.is_shown(text):
                    total += 1
                    if offset < total <= offset + limit:
                        found.append(key)
            if after and total >= offset + limit:
                break
        return KeyPage(keys=tuple(found), total=total)

    async def find(self, names: Sequence[str]) -> KeyPage:
        """The existing keys with these names; `total` is the number of names looked up.

        Stops early if the arguments would be too large for one answer.
        """
        await self._catch_up()
        found, size, looked = list[Key](), 0, 0
        for name in names:
            if size > _ANSWER_BYTES:
                break
            looked += 1
            if not (key := self._current(name)).is_free:
                found.append(key)
                contents = [key.next, *(one.content for one in key.holders)]
                size += sum(len(one.message.body) for one in contents if one is not None)
        return KeyPage(keys=tuple(found), total=looked)

    def _current(self, name: str) -> Key:
        return unique_rules.current(self._known.get(name), self._now())

    async def known(self) -> list[Key]:
        """All keys with a present, next or remembered job, by name."""
        return list((await self.page("", offset=0, limit=sys.maxsize)).keys)

    async def _catch_up(self) -> None:
        """Wait until the leader knows all stored ends of runs."""
        await self._ask(lambda changes: None)
        await self._ledger.reach()

    # -- batches

    def _ask(self, do: Callable[[KeyChanges], T], *, size: int = 0, first: bool = False) -> "asyncio.Future[T]":
        """Call `do` in a batch. The future has its result once the batch is stored. `size` is in bytes.

        With `first` it comes before all other waiting requests.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        request = Request(do, future, size)
        if self._closed:
            self._fail([request], _leads_no_more())
        else:
            self._asked.insert(0 if first else len(self._asked), request)
            self._news.set()
        return future

    @staticmethod
    def _fail(requests: Iterable["Request[Any]"], error: PalermoError) -> None:
        for request in requests:
            if not request.future.done():
                request.future.set_exception(error)
                request.future.exception()  # of several requests the caller awaits only the first

    async def _look(self) -> float:
        """Store batches until no request waits. Returns the seconds until the next check."""
        async with self._turn:
            if not (self._asked or self._learnt_at or await self._ledger.exists()):  # no job has ever had a key
                return TIDY_EVERY
            batch: list[Request[Any]] = []
            try:
                while not batch or self._asked:
                    await self._prepare()
                    batch = self._next()
                    await self._store(batch)
                    # Even under steady load, because the number of records that the leader can hold is limited.
                    if self._loop.time() - self._tidied_at >= TIDY_EVERY:
                        self._tidied_at = self._loop.time()
                        KeyChanges(self._known, self._now()).forget()
                        await self._ledger.tidy(self._known.keys)
                    if self._closed or not batch:
                        break
            except Exception as error:
                self._lose()
                failed, self._asked = [*batch, *self._asked], []
                if isinstance(error, PalermoError):
                    self._fail(failed, error)
                    raise
                log.exception("cannot store a batch of keys")
                self._fail(failed, PublishRefused(f"a job cannot be stored: {error!r}."))
            due = self._known.next_alarm
            return LOOK_EVERY if due is None else min(LOOK_EVERY, seconds_until(due, self._now))

    def _next(self) -> list["Request[Any]"]:
        batch, size = list[Request[Any]](), 0
        while self._asked and len(batch) < _BATCH and size <= _BATCH_BYTES:
            batch.append(self._asked.pop(0))
            size += batch[-1].size
        return batch

    def _enqueue(self, claim: KeyRequest) -> "asyncio.Future[EnqueueAnswer]":
        def do(changes: KeyChanges) -> EnqueueAnswer:
            step, answer = unique_rules.enqueue(changes.get(claim.key), claim, changes.now)
            changes.put(step)
            return answer

        return self._ask(do, size=len(claim.message.body))

    async def _prepare(self) -> None:
        if self._ledger.is_open:
            return
        self._learnt = False
        keys, reports = await self._ledger.open()
        self._known, self._learnt_at = KnownKeys(self._ledger.number), self._loop.time()
        async for some in in_turns(list(keys.values())):
            for key in some:
                self._known.remember(key)
        async for part in in_turns(reports, at_once=CODED_AT_ONCE):
            for report in part:
                self._on_report(report, read_again=True)
        self._learnt = True

    def _lose(self) -> None:
        self._ledger.drop_states()
        self._learnt = False

    async def _store(self, batch: list["Request[Any]"]) -> None:
        """Execute and store these requests, and publish due jobs."""
        changes = KeyChanges(self._known, self._now())
        changes.publish_due()
        for asked in batch:
            asked.result = asked.do(changes)
        self._changing = changes.changed
        try:
            if changes.changed or changes.jobs:
                refused = await self._commit(changes)
                batch = await self._take_back(batch, changes.changed, refused)
            for asked in batch:
                if not asked.future.done():
                    asked.future.set_result(asked.result)
        finally:
            self._changing = ()

    async def _take_back(
        self, batch: list["Request[Any]"], keys: Mapping[str, Key], refused: Mapping[str, PalermoError]
    ) -> list["Request[Any]"]:
        """Free the keys of this batch's jobs that their queues refused, and pass the errors to the callers.

        The errors are passed on last, because until the ledger records that a refused job is withdrawn, the next leader
        would publish it. Returns the other requests of the batch. If the answer to one of them named a refused job, the
        request is executed again in the next batch. Raises BrokerUnavailable if it is unknown whether the ledger has
        the record.
        """
        answered = [asked for asked in batch if isinstance(asked.result, EnqueueAnswer) and asked.result.id in refused]
        withdrawn = [asked for asked in answered if asked.result.outcome is EnqueueOutcome.STORED]
        gone = {asked.result.id for asked in withdrawn}
        changes = KeyChanges(self._known, self._now())
        for name in keys if gone else ():
            key = changes.get(name)
            for one in (key.holder, key.closed):
                if one is not None and one.id in gone:
                    changes.put(unique_rules.enqueue_refused(changes.get(name), one.id, changes.now))
        self._ledger.give_up(gone)
        if changes.changed:
            try:
                await self._commit(changes)
            except PalermoError as error:
                raise BrokerUnavailable(
                    "a queue refused a unique job, and RabbitMQ did not confirm that the job was withdrawn, so it may"
                    f" still run. {error}"
                ) from error
        for asked in withdrawn:
            self._fail([asked], refused[asked.result.id])
        again = [asked for asked in answered if asked.result.id in gone and not asked.future.done()]
        self._asked[:0] = again
        return [asked for asked in batch if not any(asked is one for one in again)]

    async def _commit(self, changes: KeyChanges) -> dict[str, PalermoError]:
        for id, job in list(self._ledger.refused.items()):
            key = None if (lock := lock_of(job)) is None else changes.changed.get(lock.key)
            if key is not None and (key.holder is None or key.holder.id != id):
                self._ledger.give_up([id])
        keys = {name: None if key.is_free else key for name, key in changes.changed.items()}
        return await self._ledger.commit(keys, changes.jobs)

    def _on_report(self, report: Report, *, read_again: bool = False) -> None:
        """Apply the end of a run, as its worker wrote it."""
        record, held = report
        run_end = self._connection.unreadable.attempt(self._queue, record, lambda: RunEnd.from_record(record))
        if run_end is None:
            self._ledger.keep(held)
            return
        # For a new leader that reads it again, its age counts from the time of writing.
        written = run_end.at if read_again else None

        def ended(key: Key, now: float) -> KeyUpdate:
            at = now if written is None else min(written, now)
            return unique_rules.end(
                key,
                run_end.id,
                run_end.how,
                serial=run_end.serial,
                starts=run_end.starts,
                now=at,
                run_at=run_end.run_at,
            )

        # Ends that are read again precede all other decisions.
        if read_again or (self._is_ready and run_end.key not in self._changing):
            step = ended(self._known.get(run_end.key), self._now())
            if not step.jobs:
                self._known.remember(step.key)
                self._ledger.keep(held)
                return
        asked = self._ask(lambda changes: changes.put(ended(changes.get(run_end.key), changes.now)), first=read_again)
        asked.add_done_callback(
            lambda done: None if done.cancelled() or done.exception() else self._ledger.settle(held)
        )


def _leads_no_more() -> BrokerUnavailable:
    return BrokerUnavailable("this worker is no longer the leader, so nothing was done.")
