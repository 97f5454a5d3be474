"""The arbiter: whoever leads decides about all keys of unique jobs, one thing after another.

What is asked while one batch is being stored goes into the next one, so that a commit serves many. Every answer is
given after what it says is stored. Only the usual start of a job, and the end of its run, need no batch: that it
runs is noted and answered on one channel, in that order, and the end is in the log already, as its worker wrote it.
What the keys are is kept in memory, and read again after anything that went wrong.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from palermo.brokers.rabbitmq.batches import Ending
from palermo.brokers.rabbitmq.batching import Asked, Batching
from palermo.brokers.rabbitmq.changes import Changes, Known
from palermo.brokers.rabbitmq.keylog import KeyLog
from palermo.brokers.rabbitmq.link import Channel, Link
from palermo.brokers.rabbitmq.outbox import Outbox
from palermo.core import unique
from palermo.core.keys import Claim, Key, Phase, lock_of
from palermo.core.message import Message
from palermo.core.unique import Answer, Outcome, Start, Step, Why
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Seconds between two looks at what is due, and at what may be forgotten.
_LOOK_EVERY, _TIDY_EVERY = 0.5, 2.0

#: Seconds until the log, which could not be read, is tried again.
_AGAIN = 1.0


class Arbiter:
    """See the module's first lines. `ask` is for anyone who leads; `run` for who does so for long."""

    def __init__(
        self,
        exchange: str,
        link: Link,
        outbox: Outbox,
        arguments: Mapping[str, Any],
        answers: Channel,
        *,
        now: Callable[[], float],
    ) -> None:
        """`arguments` are those that the queue of the log is declared with, `answers` is where `start_now` is told."""
        self._link = link
        self._log = KeyLog(exchange, link, outbox, arguments, self._on_end, answers)
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._known = Known()
        #: Whether all that is in the log is known here, and the keys that the batch being stored changes.
        self._learnt = False
        self._changing: Collection[str] = ()
        self._batches = Batching(self._prepare, self._store, self._lose)
        self._ask = self._batches.ask
        self._news = asyncio.Event()
        #: When anybody asked last, on the loop's clock.
        self.asked_at = self._loop.time()

    async def run(self) -> None:
        """Publish what is due, until this is cancelled."""
        while not await self._log.exists():
            with suppress(TimeoutError):
                async with asyncio.timeout(_TIDY_EVERY):
                    await self._news.wait()
            self._news.clear()
        tidied = self._loop.time()
        while True:
            self._news.clear()
            wait = _LOOK_EVERY
            try:
                wait = await self._ask(self._tick)
                if self._loop.time() - tidied >= _TIDY_EVERY:
                    tidied = self._loop.time()
                    await self._ask(Changes.forget, after=self._tidy)
            except PalermoError as error:
                if self._link.error is not None:
                    raise
                log.warning("keys of unique jobs cannot be looked after now error=%r", str(error))
                await asyncio.sleep(_AGAIN)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._news.wait()

    async def close(self) -> None:
        """Decide about nothing more."""
        await self._batches.close()

    @property
    def _is_ready(self) -> bool:
        """Whether a key that no batch is changing now is known."""
        return self._learnt and self._log.is_open and not self._batches.closed

    @property
    def knows(self) -> bool:
        """Whether it has ever had to look at keys."""
        return self._log.is_open

    @property
    def busy(self) -> bool:
        """Whether anything is being decided."""
        return self._batches.busy

    async def is_needed(self) -> bool:
        """Whether anybody has ever had a key here."""
        return self._log.is_open or await self._log.exists()

    def touch(self) -> None:
        """Somebody asks."""
        self.asked_at = self._loop.time()

    # -- what may be asked

    async def enqueue(self, claims: Sequence[Claim]) -> list[Answer]:
        """See palermo.uniqueness.Keys."""
        answers = [await asked for asked in [self._enqueue(claim) for claim in claims]]
        if any(answer.outcome is Outcome.DUPLICATE and answer.state == Phase.RUNNING for answer in answers):
            # What others wrote of the ends of jobs before this was asked is known after this.
            await self._log.reach()
            again = [
                self._enqueue(claim)
                for claim, answer in zip(claims, answers, strict=True)
                if answer.outcome is Outcome.DUPLICATE
            ]
            later = iter([await asked for asked in again])
            answers = [next(later) if answer.outcome is Outcome.DUPLICATE else answer for answer in answers]
        return answers

    def start_now(self, message: Message, *, worker: str, run: str, again: bool) -> Start | None:
        """The answer to a worker that wants to start a job, where nothing has to be waited for; else None.

        To be sent on the channel of the answers before anything else is.
        """
        lock = lock_of(message)
        if lock is None or lock.key in self._changing or not self._is_ready or not self._log.is_swift:
            return None
        key = self._known.keys.get(lock.key)
        # A job of which the log does not say that it is sure may be published again, once the broker was killed.
        if key is None or key.holder is None or message.id in self._log.unsure:
            return None
        step, answer = unique.start(key, message, worker=worker, run=run, again=again, now=self._now())
        holder = step.key.holder
        # And of one that was running its end may be on its way here.
        if again and key.holder.phase is Phase.RUNNING:
            return None
        if answer.why is not Why.RUN or step.jobs or holder is None or holder.serial != key.holder.serial:
            return None
        self._known.remember(step.key)
        self._log.note(step.key)
        return answer

    async def start(self, message: Message, *, worker: str, run: str, again: bool) -> Start:
        """The same, whatever has to be waited for."""
        lock = lock_of(message)
        if lock is None:
            return Start(why=Why.RUN)
        name = lock.key

        def do(changes: Changes) -> Start:
            step, answer = unique.start(
                changes.get(name), message, worker=worker, run=run, again=again, now=changes.now
            )
            changes.put(step)
            return answer

        if again:
            # If the end of its run was stored, it is known after this, though its worker died before acknowledging it.
            await self._catch_up()
        answer = await self._ask(do)
        if answer.why in (Why.COPY, Why.DUPLICATE):
            await self._log.reach()
            answer = await self._ask(do)
        return answer

    async def readmit(self, messages: Sequence[Message]) -> list[bool]:
        """Which of these may be put among those that wait again, by a person's hand; they take their keys."""

        def do(changes: Changes) -> list[bool]:
            may = []
            for message in messages:
                lock = lock_of(message)
                step, allowed = (
                    (None, True) if lock is None else unique.readmit(changes.get(lock.key), message, changes.now)
                )
                if step is not None:
                    changes.put(step)
                may.append(allowed)
            return may

        return await self._ask(do)

    async def gone(self, jobs: Iterable[tuple[str, str]]) -> None:
        """These jobs, keys and ids, are about to be taken away if they wait."""
        named = list(jobs)
        await self._take(lambda changes: ((changes.get(name), id) for name, id in named))

    async def cancelled(self, ids: Iterable[str]) -> None:
        """These jobs, if they wait, are not going to run."""
        named = list(ids)
        await self._take(lambda changes: ((key, id) for id in named for key in changes.held_by(id)))

    async def _take(self, find: Callable[[Changes], Iterable[tuple[Key, str]]]) -> None:
        """Free the keys that are found, each as it is by then, with the jobs that wait for them."""

        def do(changes: Changes) -> bool:
            runs = False
            for key, id in find(changes):
                changes.put(unique.gone(key, id, changes.now))
                runs |= key.holder is not None and key.holder.id == id and key.holder.phase is Phase.RUNNING
            return runs

        if await self._ask(do):
            # One that is believed to run may wait again.
            await self._catch_up()
            await self._ask(do)

    async def emptied(
        self, queue: str, empty: Callable[[], Awaitable[None]], *, tenant: str | None = None, apart: bool = False
    ) -> None:
        """Free the keys of all that waits in a queue, and empty it before anything else is decided.

        With `apart` only of what its tenants have, or one `tenant`.
        """

        def do(changes: Changes) -> None:
            for key in changes.all():
                holder = key.holder
                if holder is None or holder.queue != queue or (holder.run_at or 0) > changes.now:
                    continue
                if apart and not (holder.tenant if tenant is None else holder.tenant == tenant):
                    continue
                whole = tenant is None or (key.next is not None and key.next.message.tenant == tenant)
                changes.put(unique.gone(key, holder.id, changes.now, drop_next=whole))

        await self._catch_up()
        await self._ask(do, after=empty)

    async def free(self, names: Iterable[str]) -> list[str]:
        """See palermo.uniqueness.Keys."""

        def do(changes: Changes) -> list[str]:
            there = [
                name for name in dict.fromkeys(names) if not unique.current(changes.get(name), changes.now).is_free
            ]
            for name in there:
                changes.put(unique.free(changes.get(name), now=changes.now))
            return there

        return await self._ask(do)

    async def free_strays(self, strays: Iterable[tuple[str, int]]) -> list[str]:
        """Take these keys from the holders with these serials, unless they moved; which it did."""

        def do(changes: Changes) -> list[str]:
            freed = []
            for name, serial in strays:
                key = changes.get(name)
                if key.holder is not None and key.holder.serial == serial:
                    changes.put(unique.free(key, now=changes.now))
                    freed.append(name)
            return freed

        return await self._ask(do)

    async def known(self) -> list[Key]:
        """All keys of which something is known now, by name."""
        await self._catch_up()
        return await self._ask(Changes.all)

    async def _catch_up(self) -> None:
        """Hear of all ends that are stored by now."""
        await self._ask(lambda changes: None)
        await self._log.reach()

    # -- batches

    def _enqueue(self, claim: Claim) -> "asyncio.Future[Answer]":
        def do(changes: Changes) -> Answer:
            step, answer = unique.enqueue(changes.get(claim.key), claim, changes.now)
            changes.put(step)
            return answer

        return self._ask(do, size=len(claim.message.body))

    async def _prepare(self) -> None:
        if self._log.is_open:
            return
        self._learnt = False
        keys, ends = await self._log.open()
        self._known.learn(keys.values(), self._log.number)
        self._learnt = True
        for record, tag in ends:
            self._on_end(record, tag, read_again=True)
        self._news.set()

    def _lose(self) -> None:
        self._log.let_go()
        self._learnt = False

    async def _store(self, batch: list[Asked[Any]]) -> None:
        changes = Changes(self._known, self._now())
        for asked in batch:
            asked.result = asked.do(changes)
        self._changing = changes.changed
        try:
            if changes.changed or changes.jobs:
                await self._log.commit(changes.changed, changes.jobs)
                if any(key.alarm is not None for key in changes.changed.values()):
                    self._news.set()
            for asked in batch:
                if asked.after is not None:
                    await asked.after()
                if not asked.future.done():
                    asked.future.set_result(asked.result)
        finally:
            self._changing = ()

    def _on_end(self, record: Mapping[str, Any], tag: int, *, read_again: bool = False) -> None:
        """A worker wrote that a run has ended."""
        try:
            told = Ending.from_plain(record["end"])
        except (KeyError, TypeError, ValueError):
            log.warning("the end of a job cannot be read record=%.200r", record)
            return

        # Read again by another who leads, it is as old as it is.
        written = told.at if read_again else None

        def ended(key: Key, now: float) -> Step:
            at = now if written is None else min(written, now)
            return unique.end(
                key, told.id, told.how, serial=told.serial, starts=told.starts, now=at, run_at=told.run_at
            )

        if self._is_ready and told.key not in self._changing:
            step = ended(self._known.get(told.key), self._now())
            if not step.jobs:
                self._known.remember(step.key)
                self._log.keep(tag)
                return
        asked = self._ask(
            lambda changes: changes.put(ended(changes.get(told.key), changes.now)), before_others=read_again
        )
        asked.add_done_callback(lambda done: None if done.cancelled() or done.exception() else self._log.settle(tag))

    def _tick(self, changes: Changes) -> float:
        """Publish what is due; seconds until the next look."""
        wait = _LOOK_EVERY
        for key in [key for key in self._known.keys.values() if key.alarm is not None]:
            assert key.alarm is not None
            if key.alarm <= changes.now:
                changes.put(unique.tick(key, changes.now))
            else:
                wait = min(wait, key.alarm - changes.now)
        return wait

    async def _tidy(self) -> None:
        await self._log.tidy(self._known.keys)
