"""What marks do to one worker: its source leaves paused queues alone, and its cancelled jobs are not run."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Generic

from palermo.broker import Delivery
from palermo.brokers.rabbitmq.link import Link
from palermo.brokers.rabbitmq.marks import Cancels, Mark, Marks, Pauses, S
from palermo.brokers.rabbitmq.stream import Record, Stream
from palermo.crew import Obey, Order
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Seconds between attempts to read a stream that is down.
_AGAIN = 2.0

#: Seconds that a worker takes no jobs, while it cannot know which ones it is to leave alone.
_UNKNOWING = 30.0

#: Seconds that a mark outlives its job: a broker that is killed may hand out again what was acknowledged just now.
_LINGER = 30.0

#: The same when the worker leaves, which may be a burst that will never come back.
_LINGER_AT_END = 3.0

_LAST_WORDS = 2.0


class Watch(Generic[S]):
    """Follows one stream as long as the link lasts, whatever becomes of the stream.

    While it is down the last that was known holds. What was never known is waited for, but not for
    ever: RabbitMQ may lose a stream that it made just before it was killed, and jobs must go on.
    """

    def __init__(
        self, stream: Stream, link: Link, fresh: Callable[[], S], changed: Callable[[S, Record], None]
    ) -> None:
        """`changed` is called with the state as it was read, and then after every record."""
        self._stream = stream
        self._link = link
        self._fresh = fresh
        self._changed = changed
        self.state = fresh()
        self._told = asyncio.Event()
        #: Set once the stream has been read, or is known not to be there, or could not be read for long.
        self.ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    def look(self) -> None:
        """There may be a stream where there was none."""
        self._told.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while self._link.error is None:
            self._told.clear()
            state = self._fresh()

            def apply(record: Record, state: S = state) -> None:
                state.apply(record)
                if self.state is state:
                    self._changed(state, record)

            try:
                follower = await self._stream.follow(self._link, apply)
            except PalermoError as error:
                if self._link.error is not None:
                    return
                if self.ready.is_set() or loop.time() - begun > _UNKNOWING:
                    log.error("going on without knowing %s error=%r", self._stream.holds, str(error))
                    self.ready.set()
                else:
                    log.warning("taking no jobs before it is known %s error=%r", self._stream.holds, str(error))
                await asyncio.sleep(_AGAIN)
                continue
            self.state = state
            self._changed(state, {})
            self.ready.set()
            if follower is None:
                await _either(self._told, self._link.lost)
                continue
            ended = asyncio.Event()
            if follower.is_open:
                follower.on_close(ended.set)
                try:
                    await ended.wait()
                except asyncio.CancelledError:
                    if self._link.error is None:
                        await follower.close()
                    raise


class Steering:
    """All that marks do, for one worker's consumer."""

    def __init__(
        self,
        marks: Marks,
        link: Link,
        *,
        obey: Obey,
        pause: Callable[[set[str]], None],
        held: Callable[[], Iterable[Delivery]],
    ) -> None:
        """`pause` is told which queues to leave alone; `held` gives what was handed out and is not settled."""
        self._marks = marks
        self._obey = obey
        self._pause = pause
        self._held = held
        self._pauses = Watch(marks.pauses, link, Pauses, self._paused)
        self._cancels = Watch(marks.cancels, link, Cancels, self._cancelled)
        #: Marks whose jobs are gone, and since when.
        self._done: dict[str, tuple[Mark, float]] = {}
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[object]] = set()

    async def begin(self) -> None:
        """Follow the marks; returns once they are known, or a stream that is down has used up its patience."""
        self._pauses.begin()
        self._cancels.begin()
        await self._pauses.ready.wait()
        await self._cancels.ready.wait()

    async def look(self, news: Mapping[str, Any]) -> None:
        """Someone has made a mark, perhaps the first; ends when it is known here whether that queue is paused."""
        self._pauses.look()
        self._cancels.look()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                while "queue" in news and (news["queue"] in self._pauses.state.queues) != news.get("paused"):
                    self._news.clear()
                    await self._news.wait()

    def checked(self, delivery: Delivery) -> Delivery:
        """The delivery, saying whether it is cancelled."""
        state = self._cancels.state
        mark = state.find(delivery.message) if state.marks else None
        return delivery if mark is None else replace(delivery, cancelled=True, cancelled_by=mark.by)

    def gone(self, delivery: Delivery) -> None:
        """Its job has left the queue for good."""
        state = self._cancels.state
        mark = state.find(delivery.message) if state.marks else None
        if mark is None:
            return
        self._done[delivery.message.id] = (mark, self._loop.time())
        if self._timer is None:
            self._timer = self._loop.call_later(_LINGER, self._forget_soon)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with suppress(PalermoError, TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                await self._forget(_LINGER_AT_END)
        for task in list(self._tasks):
            task.cancel()
        await self._pauses.close()
        await self._cancels.close()

    def _paused(self, state: Pauses, record: Record) -> None:
        self._pause(set(state.queues))
        self._news.set()

    def _cancelled(self, state: Cancels, record: Record) -> None:
        """What was taken before the mark was known, and may run by now, is told to end."""
        ids = record.get("cancel")
        for delivery in list(self._held()):
            id = delivery.message.id
            if (ids is None and not record) or (isinstance(ids, list) and id in ids):
                mark = state.find(delivery.message)
                if mark is not None and not delivery.cancelled:
                    self._spawn(Order(action="cancel", id=id, by=mark.by))

    def _spawn(self, order: Order) -> None:
        task: asyncio.Task[object] = asyncio.ensure_future(self._obey(order))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _forget_soon(self) -> None:
        self._timer = None
        task: asyncio.Task[object] = asyncio.ensure_future(self._forget(_LINGER))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forget(self, linger: float) -> None:
        now = self._loop.time()
        due = {id: mark for id, (mark, since) in self._done.items() if now - since >= linger}
        for id in due:
            del self._done[id]
        if self._done:
            self._timer = self._loop.call_later(_LINGER, self._forget_soon)
        with suppress(PalermoError):  # then it is forgotten when the stream has grown enough
            await self._marks.forget(due)


async def _either(one: asyncio.Event, other: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in (one, other)]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
