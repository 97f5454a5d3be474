"""Sends publishes to the broker: a single message directly if possible, everything else with a coroutine.

A publish is written directly or by the coroutine `Sender._until_stored`:

* On an open session, `write` sends a single message and returns. The session calls `_answered`. Nearly every enqueue
  does this, usually on the waiting thread, without a task.
* In all other cases, the coroutine opens sessions and publishes until the message is stored or the publish times out.

`take_over` starts the coroutine for a publish that was written directly, if that failed or has no answer after half of
its time. The coroutine then waits for that answer, and publishes again only if the session is given up.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from palermo.client.recorder import Recorder, record_dropped, record_stored
from palermo.client.session_keeper import SessionKeeper
from palermo.contract.broker import Broker
from palermo.core.message import Message
from palermo.core.topics import Event
from palermo.core.unique_keys import KeyRequest
from palermo.core.unique_rules import EnqueueAnswer, EnqueueOutcome
from palermo.errors import BrokerBlocked, BrokerUnavailable, PalermoError

#: Seconds between attempts, doubled from the first to the last value.
_FIRST_PAUSE, _LAST_PAUSE = 0.05, 0.5

#: Seconds until messages that threads have stored themselves are passed to the recorder.
_RECORD_EVERY = 0.05

#: On a slow line, a larger body may take more than half of the timeout, so silence doesn't prove that the session is
#: dead.
_LARGE_BODY = 65_536


class Publish:
    """Messages to store together, and the state of the wait.

    The writing caller shares it with the I/O thread until `write` returns. From then on it belongs to the I/O thread,
    and the caller only reads the outcome once `done` or `future` is set.
    """

    __slots__ = (
        *("answers", "began", "confirmed", "done", "error", "finished", "future", "key_requests", "last_error"),
        *("messages", "session", "task"),
    )

    def __init__(
        self,
        messages: Message | Event | Sequence[Message],
        future: "Future[None] | None" = None,
        key_requests: Sequence[KeyRequest] = (),
    ):
        self.messages = messages
        #: Jobs that need a unique key, and the broker's answers.
        self.key_requests = key_requests
        self.answers: Sequence[EnqueueAnswer] | None = None
        #: Number of messages that are certainly stored.
        self.confirmed = 0
        #: When the timeout started, by the monotonic clock.
        self.began = time.monotonic()
        #: The session to which it was written directly, until the answer.
        self.session: Broker | None = None
        #: Runs `Sender._until_stored`.
        self.task: asyncio.Task[None] | None = None
        #: Error of the last attempt.
        self.last_error: BrokerUnavailable | None = None
        self.finished = False
        self.error: BaseException | None = None
        #: Awaited by an event loop; None if a thread waits.
        self.future = future
        #: Held until the publish ends. Only one thread may wait for it, and only once.
        self.done = threading.Lock()
        self.done.acquire()

    @property
    def stored(self) -> list[Message]:
        """The jobs with a unique key that are enqueued, now or once their key is free."""
        enqueued = (EnqueueOutcome.STORED, EnqueueOutcome.KEPT, EnqueueOutcome.NEXT)
        answers = zip(self.key_requests, self.answers or (), strict=False)
        return [key_request.message for key_request, answer in answers if answer.outcome in enqueued]

    @property
    def takes_long(self) -> bool:
        """Whether it may legitimately take half of its time, so that silence doesn't prove that the session is dead."""
        message = self.messages.message if isinstance(self.messages, Event) else self.messages
        return not isinstance(message, Message) or len(message.body) > _LARGE_BODY

    def confirm(self, count: int) -> None:
        """Record how many messages are stored in its session. An earlier session may have stored more."""
        self.confirmed = max(self.confirmed, count)

    def finish(self, error: BaseException | None = None) -> None:
        """Record the outcome and wake the waiter. Only the first call has an effect."""
        if self.finished:
            return
        self.finished = True
        self.error = error
        if self.future is None:
            self.done.release()
        elif self.future.set_running_or_notify_cancel():
            if error is None:
                self.future.set_result(None)
            else:
                self.future.set_exception(error)


class Sender:
    """The sender of one event loop's publishes. Other threads may call only `write`."""

    def __init__(
        self,
        keeper: SessionKeeper,
        loop: asyncio.AbstractEventLoop,
        thread: threading.Thread,
        timeout: float,
        recorder: Recorder,
    ) -> None:
        """`thread` runs the loop; `timeout` is the time limit of each publish in seconds."""
        self._keeper = keeper
        self._loop = loop
        self._thread = thread
        self._timeout = timeout
        self._recorder = recorder
        self._closed = False
        #: The coroutines' attempts on the current session.
        self._attempts: dict[Publish, asyncio.Future[Any]] = {}
        #: Messages that threads stored themselves and the recorder doesn't have yet, and whether passing them on is
        #: scheduled.
        self._unrecorded: deque[Message] = deque()
        self._recording = False

    def write(self, publish: Publish) -> bool:
        """Write a single message to the open session, if that needs no preparation or waiting.

        Any thread may call this. If it returns False, nothing was written, and the caller must call `start`.
        """
        session, message = self._keeper.session, publish.messages
        if session is None or self._closed or not isinstance(message, Message):
            return False
        publish.session = session
        if session.try_publish(message, partial(self._answered, publish, session)):
            return True
        publish.session = None
        return False

    def start(self, publish: Publish) -> None:
        """Start a publish that was not written. Its `finish` is called with the outcome within its time limit."""
        if publish.finished or (publish.future is not None and publish.future.cancelled()):
            return  # its caller already has an error
        if not self.write(publish):
            self.take_over(publish)

    def take_over(self, publish: Publish) -> None:
        """Hand a publish over to the coroutine, unless that was done already or the publish has ended."""
        if publish.finished or publish.task is not None:
            return
        if self._closed:
            publish.finish(self._keeper.closed_error())
            return
        publish.task = self._loop.create_task(self._run(publish))

    def abandon(self, publish: Publish) -> None:
        """Stop a publish whose caller doesn't wait."""
        publish.finish(self._keeper.timeout_error(publish.last_error))
        if publish.task is not None:
            publish.task.cancel()

    def session_lost(self) -> None:
        """End all attempts on a lost session. Their coroutines retry on the next one."""
        for attempt in self._attempts.values():
            attempt.cancel()

    def close(self) -> None:
        """Let later publishes fail. Pending ones fail when their tasks are cancelled or the session is closed."""
        self._closed = True
        self._record_unrecorded()

    def _answered(self, publish: Publish, session: Broker, error: PalermoError | None) -> None:
        """Handle the answer to `write`. Called in the loop's thread, or on success possibly in the writing thread."""
        if publish.finished:
            return
        if error is None:
            self._on_stored(publish)
            publish.finish()
            if publish.task is not None:
                publish.task.cancel()
            return
        publish.session = None
        if isinstance(error, BrokerUnavailable):
            publish.last_error = error
            self._keeper.give_up(session)
        if (waiting := self._attempts.get(publish)) is not None:
            waiting.cancel()
        self.take_over(publish)

    async def _run(self, publish: Publish) -> None:
        error: BaseException | None = None
        try:
            await self._until_stored(publish)
            self._on_stored(publish)
        except asyncio.CancelledError:
            error = self._keeper.closed_error()
        except BaseException as raised:
            error = raised
        publish.finish(error)

    async def _until_stored(self, publish: Publish) -> None:
        """Publish repeatedly until it is stored or times out. Raises the reason if it isn't stored."""
        end = self._loop.time() + self._timeout - (time.monotonic() - publish.began)
        session, pause = publish.session, _FIRST_PAUSE
        while True:
            try:
                async with asyncio.timeout_at(end):
                    if session is None or session is not self._keeper.session:
                        session = publish.session = None
                        session = await self._keeper.get()
                    if await self._attempt(publish, session, end):
                        return
            except TimeoutError:
                raise self._keeper.timeout_error(_blocked(session) or publish.last_error) from None
            except BrokerUnavailable as error:
                publish.last_error = error
                if session is not None:
                    self._keeper.give_up_after(error, session)
            session = None
            await asyncio.sleep(min(pause, max(0.0, end - self._loop.time())))
            pause = min(2 * pause, _LAST_PAUSE)

    async def _attempt(self, publish: Publish, session: Broker, end: float) -> bool:
        """Publish once. Returns False if the session was given up or didn't store a directly written message.

        If the session doesn't answer a small message within half of the publish's time, it is given up as a black hole
        while there is time to publish again. A later attempt has too little time to distinguish a black hole from a
        slow broker. Raises the attempt's error.
        """
        half = end - self._timeout / 2
        is_written = publish.session is session
        # A message that is already written is only awaited: `_answered` ends the publish or cancels this attempt.
        attempt = self._loop.create_future() if is_written else self._loop.create_task(self._publish(publish, session))
        self._attempts[publish] = attempt
        try:
            if is_written or half > self._loop.time():
                await asyncio.wait({attempt}, timeout=max(half - self._loop.time(), 0.0))
                if not attempt.done():
                    await self._check_silence(publish, session, began=end - self._timeout)
            await asyncio.wait({attempt})
            if attempt.cancelled():
                return False
            attempt.result()
            return True
        finally:
            del self._attempts[publish]
            attempt.cancel()

    async def _publish(self, publish: Publish, session: Broker) -> None:
        if publish.key_requests and publish.answers is None:
            publish.answers = await session.keys.enqueue(publish.key_requests)
        match publish.messages:
            case Event() as event:
                await session.events.publish(event)
            case Message() as message:
                await session.publish(message)
            case messages if messages:
                await session.publish_many(messages, stored=publish.confirm)

    async def _check_silence(self, publish: Publish, session: Broker, *, began: float) -> None:
        """Record why a publish has no answer after half of its time. Gives the session up if it is a black hole."""
        if publish.key_requests and publish.answers is None:
            with suppress(PalermoError):
                if (why := await session.keys.why_silent()) is not None:
                    publish.last_error, self._keeper.last_answer_at = why, self._loop.time()
        elif (blocked := _blocked(session)) is not None:
            # The session is alive and will store the message after the alarm; publishing again would duplicate it.
            publish.last_error = blocked
        # uvloop's clock has millisecond resolution
        elif not publish.takes_long and self._keeper.last_answer_at <= began:
            publish.last_error = publish.last_error or BrokerUnavailable(f"{session.describe()} did not respond.")
            self._keeper.give_up(session)

    def _on_stored(self, publish: Publish) -> None:
        if isinstance(publish.messages, Message) and threading.get_ident() != self._thread.ident:
            # Recorded later, because a thread that enqueues one job after another would wake the loop each time.
            self._unrecorded.append(publish.messages)
            if not self._recording:
                self._recording = True
                with suppress(RuntimeError):  # the loop was closed in the meantime
                    self._loop.call_soon_threadsafe(self._loop.call_later, _RECORD_EVERY, self._record_unrecorded)
            return
        self._keeper.last_answer_at = self._loop.time()
        record_stored(self._recorder, publish.messages)
        if publish.key_requests:
            again = {answer.id for answer in publish.answers or () if answer.displaced == answer.id}
            record_stored(self._recorder, publish.stored, again=again)
            for request, answer in zip(publish.key_requests, publish.answers or (), strict=False):
                record_dropped(self._recorder, request.message, answer)

    def _record_unrecorded(self) -> None:
        self._recording = False  # first, so that a message added later schedules the next recording
        while self._unrecorded:
            record_stored(self._recorder, self._unrecorded.popleft())


def _blocked(session: Broker | None) -> BrokerBlocked | None:
    """Return an error if the broker is blocked and stores nothing."""
    trouble = None if session is None else session.trouble
    return BrokerBlocked(trouble.text) if trouble is not None and trouble.waits else None
