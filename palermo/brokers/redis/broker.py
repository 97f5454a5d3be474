"""The Redis broker: implements palermo.contract.broker.Broker on one server."""

import asyncio
import itertools
import json
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from palermo.brokers.features.broker import StepBroker
from palermo.brokers.features.pauses_and_cancels import paused_in
from palermo.brokers.features.portions import in_steps
from palermo.brokers.features.steps import text_of
from palermo.brokers.redis import workers
from palermo.brokers.redis.consumer import RedisConsumer
from palermo.brokers.redis.diagnosis import diagnose, warn_of_eviction
from palermo.brokers.redis.jobs import to_job
from palermo.brokers.redis.store import Store, open_store
from palermo.contract import clock
from palermo.contract.broker import Finding, OnPublished, Overview, SessionParameters, ignore_count
from palermo.contract.trouble import Trouble
from palermo.contract.worker_info import OnCommand, WorkerInfo, WorkerList, ignore_command
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection
from palermo.core.topology import check_exchange_name
from palermo.errors import BrokerError, PalermoError, PublishRefused

log = logging.getLogger("palermo.redis")


async def open_session(session: SessionParameters) -> "RedisBroker":
    """Open a session with the server at the address. Raises UrlInvalid, BrokerUnavailable, BrokerRefused."""
    check_exchange_name(session.exchange)
    return RedisBroker(await open_store(session), session)


class RedisBroker(StepBroker[Store, RedisConsumer]):
    """One session with the server, opened by open_session."""

    def __init__(self, store: Store, session: SessionParameters) -> None:
        super().__init__(store, session)
        self._store = store
        unfinished: Unfinished = session.unfinished or Unfinished(Attempts(session.timeout), ())
        self._attempts = unfinished.attempts
        self._cut_off = unfinished.holders

    async def publish(self, message: Message) -> None:
        await self._publish([message])
        self._attempts.end(message)

    def try_publish(self, message: Message, ended: OnPublished) -> bool:
        # Fast path: the waiting thread writes. benchmarks.idle latency: p25 1.76 ms, 1.87 without; p50 2.8 ms, 3.2
        # without.
        def answered(error: PalermoError | None) -> None:
            if error is None:
                self._attempts.end(message)
            ended(error)

        return self._store.try_publish(message, self._attempts.begin(message), answered)

    async def publish_many(
        self,
        messages: Iterable[Message],
        stored: Callable[[int], None] = ignore_count,
    ) -> int:
        count, begun = 0, []
        for batch in in_steps(messages):
            begun.append(batch[0])
            count += await self._publish(batch)
            stored(count)
        for first in begun:  # only now, because after an error the next session starts again with the first batch
            self._attempts.end(first)
        return count

    async def _publish(self, batch: list[Message]) -> int:
        """Store messages in one step; return their number."""
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
        """Delete finished jobs and requeue those of dead workers, so that the next read sees the true state."""
        if self._store.closed:
            raise self._store.closed_error()
        for consumer in self._consumers:
            await consumer.flush()
        with suppress(PublishRefused):  # a full server can still be read
            await self._store.run("worker", "reap", "", workers.LEASE)


# -- attempts: a token lets Redis recognize a publish that is repeated over another session

#: Maximum number of tokens that Redis remembers for one client.
_MAX_TOKENS = 1024

#: Minimum seconds that Redis remembers a token.
_LEAST_SECONDS = 60.0


class Attempts:
    """One client's publishes without an answer, passed from each session to the next. Thread-safe."""

    def __init__(self, timeout: float) -> None:
        """`timeout` is the time in seconds during which a publish is repeated."""
        self._client = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._seconds = max(2 * timeout, _LEAST_SECONDS)
        #: By the message's id(): the message, its token's number, and when the token expires; oldest first.
        self._unanswered: dict[int, tuple[Message, int, float]] = {}
        self._lock = threading.Lock()

    def begin(self, first: Message) -> tuple[str, int, int]:
        """The token, for scripts/publish.lua, of an attempt to store this message, or a batch with this first message.

        The same object gets the same token until an attempt succeeds.
        """
        unanswered, now = self._unanswered, time.monotonic()
        with self._lock:  # another thread must not change the dict during the iteration
            # Keeping the message prevents another object from getting its id().
            _, number, _ = unanswered.setdefault(id(first), (first, next(self._numbers), now + self._seconds))
            for object_number, (_, _, until) in list(islice(unanswered.items(), 2)):
                if until < now:
                    del unanswered[object_number]
        return f"sent:{self._client}:{number % _MAX_TOKENS}", number, int(self._seconds)

    def end(self, first: Message) -> None:
        """Forget an attempt that succeeded."""
        with self._lock:
            self._unanswered.pop(id(first), None)


class Unfinished(Struct, frozen=True):
    """State that a lost session passes to the next one."""

    attempts: Attempts
    #: The worker's ids in Redis from this session, and from earlier ones that Redis doesn't know to be lost.
    holders: tuple[str, ...]
