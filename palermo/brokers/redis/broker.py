"""Redis as a broker: it implements palermo.contract.broker.Broker on one server."""

import asyncio
import itertools
import json
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from palermo.brokers.features import limits, sweep
from palermo.brokers.features.recurring import Recurring
from palermo.brokers.features.scheduled_jobs import ScheduledJobs
from palermo.brokers.features.steps import text_of
from palermo.brokers.features.unique_keys import Keys, as_they_run, change_keys, jobs_cancelled
from palermo.brokers.features.workflows import Workflows, end_runs, key_ender
from palermo.brokers.redis import workers
from palermo.brokers.redis.consumer import RedisConsumer
from palermo.brokers.redis.diagnosis import diagnose, warn_of_eviction
from palermo.brokers.redis.events import RedisEvents
from palermo.brokers.redis.job_search import find_jobs
from palermo.brokers.redis.jobs import cancelled_by, from_blob, to_job
from palermo.brokers.redis.journal import RedisJournal
from palermo.brokers.redis.served_queues import paused_in, paused_queues
from palermo.brokers.redis.store import Store, open_store
from palermo.contract import clock
from palermo.contract.broker import (
    Finding,
    OnPublished,
    Overview,
    Page,
    QueueInfo,
    SessionParameters,
    Tenant,
    ignore_count,
    in_steps,
)
from palermo.contract.finding import FoundJobs, with_reports
from palermo.contract.recurring_entries import EntryChange, RecurringEntry
from palermo.contract.scheduled import MOVE, AlteredJob, OnJobs, ScheduledFilter, ScheduledPage, filter_for, ignore_jobs
from palermo.contract.sweep import SweepDecision, SweepProgress
from palermo.contract.trouble import Trouble
from palermo.contract.worker_info import CommandReply, OnCommand, WorkerCommand, WorkerInfo, WorkerList, ignore_command
from palermo.core.election import Duty
from palermo.core.job_edit import JobEdit
from palermo.core.limits import LimitInfo
from palermo.core.message import MAX_BODY, Message
from palermo.core.queue_selection import QueueSelection
from palermo.core.topology import check_exchange_name, is_failed
from palermo.errors import BrokerError, BrokerRefused, NotFound, PalermoError, PublishRefused

log = logging.getLogger("palermo.redis")

#: The most that Redis takes as a place in a list.
_MOST = 2**53

#: The most cancel marks that are kept: older ones, for jobs that never came, are deleted.
MAX_CANCEL_MARKS = 100_000

#: How many jobs are cancelled in one step.
_CANCEL_STEP = 500


async def open_session(session: SessionParameters) -> "RedisBroker":
    """A session with the server that the address names. Raises UrlInvalid, BrokerUnavailable, BrokerRefused."""
    check_exchange_name(session.exchange)
    return RedisBroker(await open_store(session), session)


class RedisBroker:
    """One session with the server. Opened by open_session."""

    def __init__(self, store: Store, session: SessionParameters) -> None:
        self._store = store
        self._session = session
        self._recurring = Recurring(store)
        self.journal = RedisJournal(store, session)
        self.events = RedisEvents(store, session)
        self.keys = Keys(store)
        self.workflows = Workflows(store, key_ender(store), cancel_jobs=self._end_runs)
        self.tenants = RedisTenants(store, self.workflows)
        self._scheduled_jobs = ScheduledJobs(store, self.keys, self._recurring, self.workflows)
        self._consumers: list[RedisConsumer] = []
        unfinished: Unfinished = session.unfinished or Unfinished(Attempts(session.timeout), ())
        self._attempts = unfinished.attempts
        self._cut_off = unfinished.holders

    async def publish(self, message: Message) -> None:
        await self._publish([message])
        self._attempts.end(message)

    def try_publish(self, message: Message, ended: OnPublished) -> bool:
        # Fast path: the thread that waits writes. benchmarks.wake: p25 1.76 ms, 1.87 without; p50 2.8 ms, 3.2 without.
        def answered(error: PalermoError | None) -> None:
            if error is None:
                self._attempts.end(message)
            ended(error)

        return self._store.try_publish(message, self._attempts.begin(message), answered)

    async def publish_many(
        self,
        messages: Iterable[Message],
        sent: Callable[[], None] | None = None,
        stored: Callable[[int], None] = ignore_count,
    ) -> int:
        count, begun = 0, []
        for batch in in_steps(messages):
            begun.append(batch[0])
            count += await self._publish(batch)
            stored(count)
        for first in begun:  # not earlier: the next session begins with the first batch again
            self._attempts.end(first)
        return count

    async def _publish(self, batch: list[Message]) -> int:
        """Store messages in one step; returns how many."""
        token = self._attempts.begin(batch[0])
        jobs = (value for message in batch for value in to_job(message))
        stored: int = await self._store.run("publish", repr(clock.wall_clock()), *token, *jobs)
        return stored

    async def consume(
        self,
        selection: QueueSelection,
        *,
        slots: int,
        tag: str,
        report: Callable[[], WorkerInfo],
        on_command: OnCommand = ignore_command,
        prefetch: int = 1,
    ) -> RedisConsumer:
        if prefetch > 1:
            log.info("prefetch is 1, because a slot takes jobs from Redis one at a time")
        reported = report()
        holder = secrets.token_hex(8)
        patterns, text = json.dumps(selection.patterns), json.dumps(reported.to_plain())
        consumer = RedisConsumer(
            self._store,
            holder=holder,
            selection=selection,
            report=report,
            reported=reported,
            on_command=on_command,
            order=self._session.tenant_order,
        )
        self._consumers.append(consumer)
        values = (tag, patterns, text, " ".join(self._cut_off), *selection.select(()))
        await self._store.run("worker", "enter", holder, workers.LEASE, *values)
        self._cut_off = ()
        await warn_of_eviction(self._store)
        await consumer.start()
        return consumer

    async def queues(self) -> list[QueueInfo]:
        return (await self.overview()).queues

    async def overview(self) -> Overview:
        trouble = await self.find_trouble()
        await self._sync()
        now, found, pauses, rows = await self._store.run("look", "queues")
        living = workers.living(float(now), rows)
        serving = Counter(worker.patterns for worker in living if worker.info.answers)
        return Overview.of(
            {text_of(name): count for name, count in found},
            in_progress=Counter(text_of(queue) for *_, queues in rows for queue in queues),
            selections=((QueueSelection(patterns), count) for patterns, count in serving.items()),
            workers=WorkerList(worker.info for worker in living),
            paused=paused_in(pauses),
            trouble=trouble,
        )

    async def workers(self) -> WorkerList:
        await self._sync()
        return await workers.list_workers(self._store)

    async def command(self, command: WorkerCommand, *, timeout: float = 5.0) -> list[CommandReply]:
        await self._sync()
        return await workers.send_command(self._store, command, timeout=timeout)

    async def pause(self, queue: str, *, by: str = "") -> None:
        await self._store.change((), [("set", "pauses", queue, by), ("queues_changed",)])

    async def resume(self, queue: str, *, by: str = "") -> None:
        await self._store.change((), [("unset", "pauses", queue), ("queues_changed",)])

    async def all_paused(self) -> bool:
        return (await paused_queues(self._store)).every

    async def cancel(self, ids: Iterable[str], *, by: str = "", created_at: int | None = None) -> Sequence[str]:
        chosen = list(dict.fromkeys(ids))
        steps = await self.workflows.cancel(chosen)
        chosen += steps
        # The mark is deleted with its job. So a mark with a future time meets no later job with the same id.
        mark = f"{max(int(clock.now()), created_at or 0)} {by}"
        for first in range(0, len(chosen), _CANCEL_STEP):
            await self._cancel(chosen[first : first + _CANCEL_STEP], mark, by)
        return steps

    async def _end_runs(self, ids: Sequence[str]) -> None:
        await self.cancel(ids)
        await end_runs(self, ids)

    async def restore(self, ids: Iterable[str]) -> None:
        await self._store.change((), [("restore", list(ids))])

    async def browse(
        self, queue: str, *, offset: int = 0, limit: int = 100, newest: bool = False, max_body: int = MAX_BODY
    ) -> Page:
        await self._sync()
        page = (min(offset, _MOST), min(limit, _MOST), "1" if newest else "", max_body + 1)
        exists, total, found = await self._store.run("look", "page", queue, *page)
        if not exists:
            raise self._not_found(queue)
        messages = [from_blob(blob, queue) for _, blob in found]
        cancelled = frozenset(
            one.id for (mark, _), one in zip(found, messages, strict=True) if cancelled_by(mark, one) is not None
        )
        if not is_failed(queue):
            messages = await as_they_run(self._store, messages, max_body=max_body)
        return Page(messages=tuple(messages), total=total, cancelled=cancelled)

    async def find(
        self, ids: Collection[str], *, queue: str = "", failed: bool = True, beginnings: bool = False
    ) -> FoundJobs:
        await self._sync()
        jobs = await find_jobs(self._store, ids, failed=failed, beginnings=beginnings)
        found = await self.workflows.with_workflows(jobs, ids, failed=failed)
        return FoundJobs(jobs=with_reports(found, await self.workers()))

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
        await self._sync()
        return await sweep.sweep(self._store, self.workflows, queue, decide, progress, ids=frozenset(ids))

    async def run_scheduler(self, fired: OnJobs = ignore_jobs) -> None:
        await self._scheduled_jobs.run(fired)

    @property
    def duties(self) -> tuple[Duty, ...]:
        return (Duty.MAIN,) if self._scheduled_jobs.is_leader else ()

    async def scheduled(self, chosen: ScheduledFilter, *, offset: int = 0, limit: int = 100) -> ScheduledPage:
        return await self._scheduled_jobs.show(chosen, offset=min(offset, _MOST), limit=min(limit, _MOST))

    async def scheduled_progress(self) -> None:
        return None  # They are in order there: a look reads the jobs that it shows.

    async def alter_scheduled(
        self, chosen: ScheduledFilter, action: str, *, at: float | None = None, failed_per_queue: bool = False
    ) -> list[AlteredJob]:
        return await self._scheduled_jobs.alter(
            filter_for(chosen, action), action, at, failed_per_queue=failed_per_queue
        )

    async def edit_scheduled(self, id: str, edit: JobEdit) -> list[AlteredJob]:
        return await self._scheduled_jobs.alter(ScheduledFilter(ids=frozenset({id})), MOVE, edit.run_at, edit=edit)

    async def recurring(self) -> list[RecurringEntry]:
        return await self._recurring.all()

    async def change_recurring(self, change: EntryChange) -> None:
        await self._recurring.change(change)

    async def purge(self, queue: str) -> int:
        await self._sync()
        return await sweep.purge(self._store, self.workflows, queue)

    async def migrate(self, queue: str, kind: str, *, progress: Callable[[SweepProgress], None] | None = None) -> int:
        raise BrokerRefused("queues in Redis have no types: there is nothing to migrate.")

    async def delete(self, queue: str) -> int:
        removed = await self.purge(queue)
        await self.events.unsubscribe_queue(queue)
        while not await self._store.run("delete", queue):
            removed += await sweep.purge(self._store, self.workflows, queue)
        return removed

    async def limits(self) -> list[LimitInfo]:
        return await limits.list_limits(self._store)

    async def diagnose(self) -> list[Finding]:
        return await diagnose(self._store)

    async def lost(self) -> BrokerError:
        return await asyncio.shield(self._store.lost)

    @property
    def is_lost(self) -> bool:
        return self._store.lost.done()

    async def close(self) -> None:
        if self._store.closed:
            return
        for consumer in self._consumers:
            await consumer.close()
        await self.journal.close()
        await self._store.close()

    @property
    def trouble(self) -> Trouble | None:
        return self._store.trouble

    async def find_trouble(self) -> Trouble | None:
        return await self._store.find_trouble()

    def describe(self) -> str:
        return f"Redis at {self._store.server}, exchange {self._session.exchange}"

    def after_failure(self) -> SessionParameters:
        holders = (*self._cut_off, *(consumer.holder for consumer in self._consumers))
        return replace(self._session, unfinished=Unfinished(self._attempts, holders))

    async def _sync(self) -> None:
        """Delete finished jobs and give back those of dead workers, so that the next look sees the true state."""
        if self._store.closed:
            raise self._store.closed_error()
        for consumer in self._consumers:
            await consumer.flush()
        with suppress(PublishRefused):  # a full server can still be read
            await self._store.run("worker", "reap", "", workers.LEASE)

    async def _cancel(self, ids: list[str], mark: str, by: str) -> None:
        """Mark these jobs, free the keys that they hold while they wait, and tell the workers."""
        held = await self._store.keys_held_by(ids)
        text = json.dumps({"ids": ids, "by": by})
        steps = [("cancel", mark, MAX_CANCEL_MARKS, ids), ("publish", self._store.cancels, text)]
        names = (name for _, name in held)
        await change_keys(self._store, names, lambda states: jobs_cancelled(states, held), changes=steps)

    def _not_found(self, queue: str) -> NotFound:
        return NotFound(f"there is no queue {queue!r} at {self._store.server}. `palermo queues` lists those there are.")


class RedisTenants:
    """The tenants of one exchange's queues. See palermo.contract.broker.Tenants."""

    def __init__(self, store: Store, workflows: Workflows) -> None:
        self._store = store
        self._workflows = workflows

    async def of(self, queue: str) -> list[Tenant]:
        found = [
            Tenant(name=text_of(name), pending=pending, share=float(share))
            for name, pending, share in await self._store.run("look", "tenants", queue)
            if pending
        ]
        return sorted(found, key=lambda tenant: (-tenant.pending, tenant.name))

    async def totals(self) -> Mapping[str, int]:
        counts = await self._store.fields("tenant-jobs")
        return {text_of(queue): int(count) for queue, count in counts.items() if count.isdigit()}

    async def clear(self, queue: str, tenant: str) -> int:
        removed = await sweep.clear_tenant(self._store, self._workflows, queue, tenant)
        if not removed:
            raise NotFound(
                f"no jobs of tenant {tenant!r} wait in queue {queue!r}; `palermo tenants` lists those that do."
            )
        return removed


# -- attempts: each has a token by which Redis knows one that is sent again over another session

#: The most tokens of one client that Redis remembers.
_MAX_TOKENS = 1024

#: Seconds for which Redis remembers a token, at least.
_LEAST_SECONDS = 60.0


class Attempts:
    """The attempts of one client that have no answer yet. Handed on from each session to the next; for any thread."""

    def __init__(self, timeout: float) -> None:
        """`timeout` is the time of a publish, in seconds: so long it is sent again and again."""
        self._client = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._seconds = max(2 * timeout, _LEAST_SECONDS)
        #: By the object's own number: the message, its token's number, and when it is forgotten; the oldest first.
        self._unanswered: dict[int, tuple[Message, int, float]] = {}

    def begin(self, first: Message) -> tuple[str, int, int]:
        """The token of the attempt to store this message, or a batch that begins with it, for scripts/publish.lua.

        The same token as before if the same object was begun and got no answer.
        """
        unanswered, now = self._unanswered, time.monotonic()
        # The message is kept, so that no other object gets its number meanwhile.
        _, number, _ = unanswered.setdefault(id(first), (first, next(self._numbers), now + self._seconds))
        for object_number, (_, _, until) in list(islice(unanswered.items(), 2)):
            if until < now:
                unanswered.pop(object_number, None)
        return f"sent:{self._client}:{number % _MAX_TOKENS}", number, int(self._seconds)

    def end(self, first: Message) -> None:
        """Forget an attempt that succeeded."""
        self._unanswered.pop(id(first), None)


class Unfinished(Struct, frozen=True):
    """What a session that was lost leaves to the next one."""

    attempts: Attempts
    #: The ids within Redis that its workers had, and those of sessions before it that Redis was not told of.
    holders: tuple[str, ...]
