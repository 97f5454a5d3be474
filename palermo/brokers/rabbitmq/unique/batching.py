"""Does requests about keys in batches: those that come while one is stored go into the next, so a commit serves many.

The leader has all keys in memory, and notes what a batch changes in them.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from palermo.core import unique_rules
from palermo.core.instants import Instants
from palermo.core.message import Message
from palermo.core.unique_keys import Key
from palermo.core.unique_rules import KeyUpdate
from palermo.errors import BrokerUnavailable, PalermoError, PublishRefused

log = logging.getLogger("palermo.rabbitmq")

T = TypeVar("T")

#: Keys that are looked at in one turn of the loop, and those that are read or written there.
AT_ONCE, CODED_AT_ONCE = 1_000, 200


async def in_turns(items: Sequence[T], *, at_once: int = AT_ONCE) -> AsyncIterator[Sequence[T]]:
    """The items in portions, each in a turn of the loop of its own, so that nothing else waits for all of them."""
    for start in range(0, len(items), at_once):
        yield items[start : start + at_once]
        await asyncio.sleep(0)


class KnownKeys:
    """All keys that are not free, by name and by holder."""

    def __init__(self, serial: int = 0) -> None:
        """No key that was forgotten has had a serial above `serial`."""
        self.keys: dict[str, Key] = {}
        #: By the id of a job the name of its key; a set of names for the rare job that holds several.
        self._holders: dict[str, str | set[str]] = {}
        self._alarms = Instants()
        self._ends = Instants()
        #: The serial of a new key before its first holder. No forgotten key has had a higher one, so a late report
        #: about the holder of a forgotten key is never taken for one about the holder of a new key.
        self._serial = serial

    def get(self, name: str) -> Key:
        """The key with this name; a free one if it is unknown."""
        return self.keys.get(name) or Key(name=name, serial=self._serial)

    def held_by(self, id: str) -> list[Key]:
        """The keys that the job with this id holds."""
        names = self._holders.get(id, ())
        return [self.keys[name] for name in ((names,) if isinstance(names, str) else sorted(names))]

    def remember(self, key: Key) -> None:
        """Store a key, to be found by its name and its holder. A free key is forgotten."""
        old = self.keys.get(key.name)
        before = None if old is None or old.holder is None else old.holder.id
        after = None if key.holder is None else key.holder.id
        if before is not None and before != after:
            self._forget_holder(before, key.name)
        self._serial = max(self._serial, key.serial)
        self._alarms.put(key.name, key.alarm)
        self._ends.put(key.name, key.over)
        if key.is_free:
            self.keys.pop(key.name, None)
            return
        self.keys[key.name] = key
        if after is not None and before != after:
            self._remember_holder(after, key.name)

    def _remember_holder(self, id: str, name: str) -> None:
        names = self._holders.setdefault(id, name)
        if isinstance(names, set):
            names.add(name)
        elif names != name:
            self._holders[id] = {names, name}

    def _forget_holder(self, id: str, name: str) -> None:
        names = self._holders.get(id)
        if isinstance(names, set):
            names.discard(name)
        if names == name or not names:
            self._holders.pop(id, None)

    def due(self, now: float) -> list[Key]:
        """The keys whose alarms have come."""
        return [self.keys[name] for name in self._alarms.until(now)]

    @property
    def next_alarm(self) -> float | None:
        """The Unix seconds of the first alarm; None if there is none."""
        return self._alarms.first

    def over(self, now: float) -> list[Key]:
        """The keys that are free by now because time has passed."""
        return [self.keys[name] for name in self._ends.until(now)]


class KeyChanges:
    """The keys that one batch changes, and the jobs that it publishes."""

    def __init__(self, known: KnownKeys, now: float) -> None:
        self._known = known
        self.now = now
        self.changed: dict[str, Key] = {}
        self.jobs: list[Message] = []

    def get(self, name: str) -> Key:
        """The key with this name; a free one if it is unknown."""
        return self._known.get(name)

    def held_by(self, id: str) -> list[Key]:
        """The keys that the job with this id holds."""
        return self._known.held_by(id)

    def all(self) -> list[Key]:
        """All keys as they are now."""
        keys = (unique_rules.current(key, self.now) for key in self._known.keys.values())
        return [key for key in keys if not key.is_free]

    def forget(self) -> None:
        """Forget the keys that the passing of time has made free. That need not be written down."""
        for key in self._known.over(self.now):
            self._known.remember(Key(name=key.name))

    def publish_due(self) -> float | None:
        """Publish the jobs that are due. Returns the instant of the next one; None if there is none."""
        for key in self._known.due(self.now):
            self.put(unique_rules.publish_due(key, self.now))
        return self._known.next_alarm

    def put(self, step: KeyUpdate) -> None:
        """Apply a step: store its key, and add its jobs to those to publish."""
        key, old = step.key, self.get(step.key.name)
        self.jobs += step.jobs
        if key == old and not step.jobs:
            return
        self.changed[key.name] = key
        self._known.remember(key)


#: The most requests in one batch, and the bytes of bodies beyond which none is added.
_BATCH, _BYTES = 500, 4 * 1024 * 1024


class BatchRequest(Struct, Generic[T]):
    """A request: something to be done in a batch."""

    do: Callable[[KeyChanges], T]
    future: "asyncio.Future[T]"
    size: int = 0
    #: Awaited once the batch is stored, before anything else is decided.
    after: Callable[[], Awaitable[None]] | None = None
    result: Any = None


class RequestBatches:
    """The requests that wait, and the task that does and stores them batch by batch."""

    def __init__(
        self,
        prepare: Callable[[], Awaitable[None]],
        store: Callable[[list[BatchRequest[Any]]], Awaitable[None]],
        lose: Callable[[], None],
    ) -> None:
        """`prepare` is awaited before each batch is chosen; `lose` is called when a batch could not be stored."""
        self._prepare = prepare
        self._store = store
        self._lose = lose
        self._loop = asyncio.get_running_loop()
        self._asked: list[BatchRequest[Any]] = []
        self._working: asyncio.Task[None] | None = None
        #: Whether no more requests are done.
        self.closed = False

    @property
    def busy(self) -> bool:
        """Whether a batch is being stored."""
        return self._working is not None and not self._working.done()

    async def close(self) -> None:
        """Stop. Requests that wait fail with BrokerUnavailable."""
        self.closed = True
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait({self._working})

    def ask(
        self,
        do: Callable[[KeyChanges], T],
        *,
        size: int = 0,
        after: Callable[[], Awaitable[None]] | None = None,
        before_others: bool = False,
    ) -> "asyncio.Future[T]":
        """Have `do` called in a batch. The future has its result once the batch is stored. `size` is the bytes it adds.

        With `before_others` it is done before all other requests that wait.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        if self.closed:
            future.set_exception(_leads_no_more())
            future.exception()  # of several requests the caller awaits only the first
            return future
        self._asked.insert(0 if before_others else len(self._asked), BatchRequest(do, future, size, after))
        if not self.busy:
            self._working = self._loop.create_task(self._work())
        return future

    def ask_again(self, asked: list[BatchRequest[Any]]) -> None:
        """Have these done in the next batch, before all that came since. To be called while a batch is being stored."""
        self._asked[:0] = asked

    async def _work(self) -> None:
        """Store one batch after another until no request waits."""
        while self._asked:
            batch: list[BatchRequest[Any]] = []
            try:
                await self._prepare()
                batch = self._next()
                await self._store(batch)
            except asyncio.CancelledError:
                _fail([*batch, *self._asked], _leads_no_more())
                raise
            except Exception as error:
                self._lose()
                rest, self._asked = self._asked, []
                if not isinstance(error, PalermoError):
                    log.exception("a batch of keys cannot be stored")
                _fail([*batch, *rest], error)

    def _next(self) -> list[BatchRequest[Any]]:
        batch: list[BatchRequest[Any]] = []
        size = 0
        while self._asked and len(batch) < _BATCH and size <= _BYTES:
            asked = self._asked.pop(0)
            batch.append(asked)
            size += asked.size
            if asked.after is not None:
                break
        return batch


def _fail(batch: Iterable[BatchRequest[Any]], error: Exception) -> None:
    told = error if isinstance(error, PalermoError) else PublishRefused(f"a job cannot be stored: {error!r}.")
    for asked in batch:
        if not asked.future.done():
            asked.future.set_exception(told)
            asked.future.exception()  # nobody may be waiting for it any more


def _leads_no_more() -> BrokerUnavailable:
    return BrokerUnavailable("this process is no longer the leader; the request was not carried out.")
