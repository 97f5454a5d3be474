"""What whoever leads does with scheduled jobs when asked: shows some, cancels, runs or moves them.

Jobs are either held (held.py) or lie in the queues of stretches that nobody reads meanwhile, so
each is met exactly once, and whether it came due before is a fact and no guess.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial

from pika import spec

from palermo.broker import Keep, Move, Remove, Verdict
from palermo.brokers.rabbitmq import sweep as sweeping
from palermo.brokers.rabbitmq.held import Due, Held
from palermo.brokers.rabbitmq.later import queue_of
from palermo.brokers.rabbitmq.link import Got, Link
from palermo.brokers.rabbitmq.outbox import Outbox
from palermo.brokers.rabbitmq.wire import to_message
from palermo.core.delay import Stretch, in_order, moved
from palermo.core.lifecycle import give_up
from palermo.core.message import Message
from palermo.core.topology import failed_queue
from palermo.core.values import dataclass
from palermo.errors import NotFound, PalermoError
from palermo.timetable import CANCEL, GIVE_UP, Altered, Chosen, Scheduled

#: Messages looked at before anything else of this process has its turn: what is due must not wait.
_SLICE = 100

#: The header that a job bears if it has failed.
_ERROR = "exception-class"

#: Stores messages, and returns once all are confirmed.
Publish = Callable[[list[Message]], Awaitable[object]]


@dataclass(slots=True)
class Section:
    """Stretches whose times overlap: their jobs are to be put in order together."""

    ends: float
    total: int
    stretches: list[Stretch]
    held: bool = False


class Sheets:
    """Looks at scheduled jobs, and changes them, for the one who leads."""

    def __init__(
        self, exchange: str, link: Link, outbox: Outbox, leaving: Callable[[list[Message]], Awaitable[object]]
    ) -> None:
        """`leaving` is awaited with jobs that are about to be cancelled or given up."""
        self._leaving = leaving
        self._exchange = exchange
        self._link = link
        self._outbox = outbox

    async def browse(
        self, chosen: Chosen, *, offset: int, limit: int, held: Sequence[Message], lying: Mapping[Stretch, int]
    ) -> Scheduled:
        """A page of them, soonest first; where all are meant, only the stretches that it touches are read.

        `held` are those in memory, in order; `lying` says how many are in each stretch that is not open.
        """
        lying = _overlapping(chosen, lying)
        first, last = offset, offset + limit
        total = seen = 0
        found: list[Message] = []
        for section in _sections(held, lying):
            if chosen.everything:
                total += section.total
                if seen + section.total <= first or seen >= last:
                    seen += section.total
                    continue
            jobs = _Soonest(last - min(seen, last))
            if section.held:
                for message in held:
                    if chosen.means(message):
                        jobs.add(message.run_at or 0.0, message)
            for stretch in section.stretches:
                async for got in self._read(stretch):
                    if _means(chosen, got.properties):
                        jobs.add(_due(got.properties), got)
            found += jobs.messages()[max(0, first - seen) : max(0, last - seen)]
            seen += jobs.total
            if not chosen.everything:
                total += jobs.total
        return Scheduled(messages=tuple(found), total=total)

    async def alter(
        self, chosen: Chosen, action: str, at: float, *, held: Due, lying: Mapping[Stretch, int], apart: bool = False
    ) -> list[Altered]:
        """Do this to the jobs that are meant, at which instant they are to run; which they were.

        `apart` is for those that are given up: the failed jobs of every queue have a queue of their own.
        """
        lying = _overlapping(chosen, lying)
        judge = _Judge(chosen, action, at)
        publish: Publish = self._outbox.publish_many
        if action == GIVE_UP:
            publish = partial(
                self._outbox.publish_many, into=lambda message: failed_queue(message.queue, per_queue=apart)
            )

        async def gate(gone: list[tuple[Message, Message | None]]) -> list[bool]:
            if action in (CANCEL, GIVE_UP):
                await self._leaving([there for there, _ in gone])
            return [True] * len(gone)

        await self._alter_held(held, held.take(chosen.means), judge, publish, gate)
        # Far stretches first: what is moved from one to a nearer one is known by its new instant.
        for stretch in sorted(lying, reverse=True):
            if lying[stretch]:
                reader = sweeping.Reader(self._link, self._exchange, name=queue_of(self._exchange, stretch))
                try:
                    await sweeping.sweep(reader, None, judge, publish, lambda _: None, gate=gate)
                except NotFound:
                    continue
        return sorted(judge.altered.values(), key=lambda one: one.run_at)

    async def _alter_held(
        self, due: Due, taken: list[Held], judge: "_Judge", publish: Publish, gate: sweeping.Gate
    ) -> None:
        """Those in memory: all that is stored elsewhere is acknowledged, and what cannot be stays."""
        for start in range(0, len(taken), _SLICE):
            batch = taken[start : start + _SLICE]
            verdicts = [judge(held.message) for held in batch]
            try:
                await gate([(held.message, None) for held in batch])
                await publish([one.message for one in verdicts if isinstance(one, Move)])
            except PalermoError:
                for held in taken[start:]:
                    due.put_back(held)
                raise
            for held, verdict in zip(batch, verdicts, strict=True):
                if isinstance(verdict, Keep):
                    due.put_back(held)
                else:
                    held.ack()

    async def _read(self, stretch: Stretch) -> AsyncIterator[Got]:
        reader = sweeping.Reader(self._link, self._exchange, name=queue_of(self._exchange, stretch))
        try:
            count = await reader.count()
            async for _, page in reader.pages(count):
                for number, got in enumerate(page):
                    if number % _SLICE == 0:
                        await asyncio.sleep(0)
                    yield got
        except NotFound:
            return
        finally:
            await reader.close()


class _Judge:
    """What is to become of each scheduled job."""

    def __init__(self, chosen: Chosen, action: str, at: float) -> None:
        self._chosen = chosen
        self._action = action
        self._at = at
        self.altered: dict[str, Altered] = {}

    def __call__(self, message: Message) -> Verdict:
        if not self._chosen.means(message):
            return Keep()
        known = message.id in self.altered
        if known and message.run_at == self._at:
            return Keep()  # where we have just put it
        if not known:
            self.altered[message.id] = Altered(
                id=message.id, job=message.job, queue=message.queue, run_at=message.run_at or 0.0
            )
        elif self._action != CANCEL:
            return Remove()  # a second copy, which a crash left
        if self._action == CANCEL:
            return Remove()
        return Move(give_up(message) if self._action == GIVE_UP else moved(message, self._at))


class _Soonest:
    """The soonest so many of what it is given, with bounded memory."""

    def __init__(self, most: int) -> None:
        self.total = 0
        self._most = max(0, most)
        self._jobs: list[tuple[float, int, Got | Message]] = []

    def add(self, due: float, job: Got | Message) -> None:
        self.total += 1
        self._jobs.append((due, self.total, job))
        if len(self._jobs) > 2 * self._most + 1_000:
            self._cut()

    def messages(self) -> list[Message]:
        self._cut()
        return [
            to_message(job.properties, job.body, taken_from=None) if isinstance(job, Got) else job
            for _, _, job in self._jobs
        ]

    def _cut(self) -> None:
        self._jobs.sort(key=lambda one: one[:2])
        del self._jobs[self._most :]


def _sections(held: Sequence[Message], lying: Mapping[Stretch, int]) -> Iterator[Section]:
    """All that there is, in the order of time; what overlaps together."""
    now: Section | None = None
    if held:
        now = Section(held[-1].run_at or 0.0, len(held), [], held=True)
    for stretch in in_order(one for one, count in lying.items() if count):
        if now is not None and (
            stretch.begins < now.ends or (now.held and not now.stretches and stretch.begins <= now.ends)
        ):
            now.ends = max(now.ends, stretch.ends)
            now.total += lying[stretch]
            now.stretches.append(stretch)
            continue
        if now is not None:
            yield now
        now = Section(stretch.ends, lying[stretch], [stretch])
    if now is not None:
        yield now


def _overlapping(chosen: Chosen, lying: Mapping[Stretch, int]) -> Mapping[Stretch, int]:
    """The stretches that may hold what is chosen."""
    if chosen.due is None:
        return lying
    first, last = chosen.due
    return {one: count for one, count in lying.items() if one.begins <= last and first < one.ends}


def _due(properties: spec.BasicProperties) -> float:
    found = (properties.headers or {}).get("run-at")
    return float(found) if isinstance(found, int | float) else 0.0


def _means(chosen: Chosen, properties: spec.BasicProperties) -> bool:
    """Chosen.means, for a message as it lies: making a Message of each of 100,000 takes seconds."""
    if chosen.everything:
        return True
    if chosen.ids is not None and properties.message_id not in chosen.ids:
        return False
    if chosen.due is not None and not chosen.due[0] <= _due(properties) <= chosen.due[1]:
        return False
    if chosen.retries is not None and chosen.retries is not (_ERROR in (properties.headers or {})):
        return False
    return (chosen.queue is None and chosen.job is None) or chosen.means(to_message(properties, b"", taken_from=None))
