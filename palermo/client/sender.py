"""Sends pending publishes to the broker. Opens a new session after a loss.

A publish goes on over as many sessions as it takes, until its deadline. A single message on an open session is sent at
once and answered by a callback, without a task: nearly every enqueue goes this way, and the thread that waits for it
mostly sends it itself. If a session must be opened, a queue made or an error overcome, a task in the client's event
loop goes on where that path ended. One timer keeps the deadlines of the publishes that the loop has begun; a thread
that sent one itself keeps its time until half of it is over.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from palermo.client.recorder import Recorder, record_dropped, record_stored
from palermo.client.session_keeper import SessionKeeper
from palermo.contract.broker import Broker
from palermo.core.message import Message
from palermo.core.topics import Event
from palermo.core.unique_keys import KeyRequest
from palermo.core.unique_rules import EnqueueAnswer, EnqueueOutcome
from palermo.errors import BrokerBlocked, BrokerUnavailable, LeaderUnavailable, PalermoError

#: Between attempts to open a session; doubled each time up to the last.
_FIRST_PAUSE, _LAST_PAUSE = 0.05, 0.5

#: Seconds until the recorder gets the messages that threads have stored by themselves.
_RECORD_EVERY = 0.05

#: A larger body may take more than half of the time on a slow line, so a silent session proves nothing then.
_TELLING_BYTES = 65_536


class PendingPublish:
    """A pending publish: the messages, and the wait for its end. All but `done` belongs to the I/O thread."""

    __slots__ = (
        "after",
        "answers",
        "confirmed",
        "done",
        "error",
        "explaining",
        "finished",
        "future",
        "is_late",
        "key_requests",
        "last",
        "messages",
        "restarting",
        "sent",
        "session",
        "started_at",
        "task",
    )

    def __init__(
        self,
        messages: Message | Event | Sequence[Message],
        after: "PendingPublish | None" = None,
        future: "Future[None] | None" = None,
        key_requests: Sequence[KeyRequest] = (),
    ):
        self.messages = messages
        #: Jobs that need a unique key, and the broker's answers about them.
        self.key_requests = key_requests
        self.answers: Sequence[EnqueueAnswer] | None = None
        #: The pending publish before this one. This one begins once that one is sent, and fails if that one has failed.
        self.after = after
        #: How many of several messages are stored for certain.
        self.confirmed = 0
        #: Set once all of it has been sent on its present session, or it has ended.
        self.sent = asyncio.Event()
        #: For an event loop that waits; without it a thread waits.
        self.future = future
        #: When it began, by the loop's clock; 0 before, and while the thread that sent it keeps its time.
        self.started_at = 0.0
        self.finished = False
        #: Why it failed.
        self.error: BaseException | None = None
        #: Why its latest attempt failed.
        self.last: BrokerUnavailable | None = None
        #: The session of its current attempt.
        self.session: Broker | None = None
        #: Whether its task was cancelled in order to go on with another session.
        self.restarting = False
        #: Whether it was found unfinished after half of its time.
        self.is_late = False
        self.task: asyncio.Task[None] | None = None
        #: Finds out why it gets no answer.
        self.explaining: asyncio.Task[None] | None = None
        #: Held until it has ended. One thread may wait for that, and not after it has taken the lock.
        self.done = threading.Lock()
        self.done.acquire()

    @property
    def stored(self) -> list[Message]:
        """The jobs among the key requests that are enqueued, now or as soon as their turn comes."""
        there = (EnqueueOutcome.STORED, EnqueueOutcome.KEPT, EnqueueOutcome.NEXT)
        answers = zip(self.key_requests, self.answers or (), strict=False)
        return [key_request.message for key_request, answer in answers if answer.outcome in there]

    def confirm(self, count: int) -> None:
        """Note how many of its messages are stored in its present session; another one may have stored more."""
        self.confirmed = max(self.confirmed, count)

    @property
    def may_be_silent(self) -> bool:
        """Whether a silent session proves nothing, because this publish may rightly take half of its time."""
        message = self.messages.message if isinstance(self.messages, Event) else self.messages
        return self.is_late or not isinstance(message, Message) or len(message.body) > _TELLING_BYTES

    def finish(self, error: BaseException | None = None) -> None:
        """Record how it ended, and wake the waiter. Only the first call counts."""
        if self.finished:
            return
        self.finished = True
        self.error = error
        self.after = None
        self.sent.set()
        if self.explaining is not None:
            self.explaining.cancel()
        if self.future is None:
            self.done.release()
        elif self.future.set_running_or_notify_cancel():
            if error is None:
                self.future.set_result(None)
            else:
                self.future.set_exception(error)


class Sender:
    """The sender of one event loop's pending publishes. Other threads may call only `try_send`."""

    def __init__(
        self,
        keeper: SessionKeeper,
        loop: asyncio.AbstractEventLoop,
        thread: threading.Thread,
        timeout: float,
        recorder: Recorder,
    ) -> None:
        """`thread` runs the loop; `timeout` is the time of each publish, in seconds."""
        self._keeper = keeper
        self._loop = loop
        self._thread = thread
        self._timeout = timeout
        self._recorder = recorder
        self._closed = False
        #: The publishes that have begun and not ended. Other threads add to it.
        self._in_flight: dict[PendingPublish, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: Messages that threads stored themselves and the recorder lacks; whether the loop is about to pass them on.
        self._unrecorded: deque[Message] = deque()
        self._recording = False

    def try_send(self, pending: PendingPublish) -> bool:
        """Send a publish of one message now, if the session can; any thread may call this.

        If the result is False, the publish must be given to `start`. If it is True, a thread that sent it outside of
        the loop has it adopted if it has not ended after half of its time.
        """
        session, message = self._keeper.session, pending.messages
        if session is None or self._closed or not isinstance(message, Message):
            return False
        pending.session = session
        if not session.try_publish(message, partial(self._on_published, pending, session)):
            return False
        if not pending.finished:  # Not earlier: `restart` must not begin anew what this thread is still sending.
            self._in_flight[pending] = None
        if pending.finished:
            self._in_flight.pop(pending, None)
        elif self._keeper.session is not session or self._closed:
            # The session was given up between our look and the sending, and `restart` may have missed this publish.
            try:
                self._loop.call_soon_threadsafe(self.adopt, pending)
            except RuntimeError:  # the loop was closed meanwhile
                pending.finish(self._keeper.closed_error())
        return True

    def adopt(self, pending: PendingPublish) -> None:
        """Keep the time of a publish that another thread has sent, and waits for in vain."""
        if pending.finished or pending.started_at or pending.task is not None:
            return
        if self._closed:
            self._end(pending, self._keeper.closed_error())
            return
        pending.started_at = self._loop.time() - self._timeout / 2
        if pending.session is not self._keeper.session:
            self._continue_in_task(pending)
        self._check_deadlines()

    def start(self, pending: PendingPublish, spent: float = 0.0) -> None:
        """Begin a publish, `spent` seconds of whose time are over; its `finish` is called with how it ended."""
        if pending.finished or (pending.future is not None and pending.future.cancelled()):
            return  # its caller has been told that it is not stored
        if self._closed:
            self._end(pending, self._keeper.closed_error())
            return
        if pending.after is None:
            self._begin_time(pending, spent)
        if not self.try_send(pending):
            self._continue_in_task(pending)

    def abandon(self, pending: PendingPublish) -> None:
        """Stop a publish that nobody waits for any more."""
        if pending.task is not None:
            pending.task.cancel()
        else:
            self._end(pending, self._keeper.timeout_error(pending.last))

    def restart(self, session: Broker) -> None:
        """Begin the pending publishes that are in flight on a given-up session anew, on the next session."""
        moving = [pending for pending in list(self._in_flight) if pending.session is session]
        for pending in moving:
            pending.sent.clear()
        for pending in moving:
            if pending.task is None:
                self._continue_in_task(pending)
            elif not pending.restarting:
                pending.restarting = True
                pending.task.cancel()

    def close(self) -> None:
        """Fail all pending publishes, later ones too; the caller cancels their tasks."""
        self._closed = True
        for pending in list(self._in_flight):
            pending.error = self._keeper.closed_error()
            pending.restarting = False
            if pending.task is None:
                self._end(pending, pending.error)
        if self._timer is not None:
            self._timer.cancel()
        self._record_unrecorded()

    def _on_published(self, pending: PendingPublish, session: Broker, error: PalermoError | None) -> None:
        if pending.finished or pending.task is not None or pending.session is not session:
            return  # the publish has ended, or goes on in another way
        if error is None:
            self._on_stored(pending)
            self._in_flight.pop(pending, None)
            pending.finish()
            return
        if isinstance(error, BrokerUnavailable):
            pending.last = error
        self._continue_in_task(pending)
        if isinstance(error, BrokerUnavailable):
            self._keeper.give_up(session)

    def _on_stored(self, pending: PendingPublish) -> None:
        if isinstance(pending.messages, Message) and threading.get_ident() != self._thread.ident:
            # Recorded later: a thread that enqueues one job after the other would wake the loop each time.
            self._unrecorded.append(pending.messages)
            if not self._recording:
                self._recording = True
                with suppress(RuntimeError):  # the loop was closed meanwhile
                    self._loop.call_soon_threadsafe(self._loop.call_later, _RECORD_EVERY, self._record_unrecorded)
            return
        self._keeper.last_answer_at = self._loop.time()
        record_stored(self._recorder, pending.messages)
        if pending.key_requests:
            again = {answer.id for answer in pending.answers or () if answer.instead_of == answer.id}
            record_stored(self._recorder, pending.stored, again=again)
            for request, answer in zip(pending.key_requests, pending.answers or (), strict=False):
                record_dropped(self._recorder, request.message, answer)

    def _record_unrecorded(self) -> None:
        self._recording = False  # first: a message that is added from here on schedules the next recording
        while self._unrecorded:
            record_stored(self._recorder, self._unrecorded.popleft())

    def _continue_in_task(self, pending: PendingPublish) -> None:
        """Continue a publish in a task, in what is left of its time."""
        pending.session = None
        pending.task = self._loop.create_task(self._send(pending))

    # -- by a task

    async def _send(self, pending: PendingPublish) -> None:
        error: BaseException | None = None
        try:
            await _wait_for_previous(pending)
            self._begin_time(pending)
            await self._publish_until_stored(pending)
        except asyncio.CancelledError:
            error = pending.error or (
                self._keeper.closed_error() if self._closed else self._keeper.timeout_error(pending.last)
            )
        except BaseException as raised:
            error = raised
        finally:
            self._end(pending, error)

    async def _publish_until_stored(self, pending: PendingPublish) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                if await self._publish_once(pending):
                    return
                await asyncio.sleep(pause)
            except asyncio.CancelledError:
                if not pending.restarting or pending.task is None:
                    raise
                pending.restarting = False
                pending.task.uncancel()
            pause = min(2 * pause, _LAST_PAUSE)

    async def _publish_once(self, pending: PendingPublish) -> bool:
        """Publish once; False if the session could not be opened or was lost."""
        session = self._keeper.session
        try:
            if session is None:
                session = await self._keeper.get()
            pending.session = session
            await _wait_for_previous(pending)
            if pending.key_requests and pending.answers is None:
                pending.answers = await session.keys.enqueue(pending.key_requests)
            if isinstance(pending.messages, Event):
                await session.events.publish(pending.messages)
            elif isinstance(pending.messages, Sequence):
                if pending.messages:
                    await session.publish_many(pending.messages, pending.sent.set, pending.confirm)
            else:
                await session.publish(pending.messages)
        except BrokerUnavailable as error:
            pending.last = error
            pending.sent.clear()
            waits = isinstance(error, LeaderUnavailable | BrokerBlocked)
            if session is not None and (session.is_lost or not waits):
                self._keeper.give_up(session)
            return False
        finally:
            pending.session = None
        self._on_stored(pending)
        return True

    # -- deadlines

    def _begin_time(self, pending: PendingPublish, spent: float = 0.0) -> None:
        if pending.started_at:
            return
        pending.started_at = self._loop.time() - spent
        self._in_flight[pending] = None
        if self._timer is None:
            self._timer = self._loop.call_at(pending.started_at + self._timeout / 2, self._check_deadlines)

    def _end(self, pending: PendingPublish, error: BaseException | None) -> None:
        self._in_flight.pop(pending, None)
        pending.finish(error)

    def _check_deadlines(self) -> None:
        """Fail overdue publishes, and replace a session that was silent for half the time of a publish on it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._loop.time()
        for pending in [each for each in list(self._in_flight) if each.started_at]:
            age = now - pending.started_at
            session = pending.session
            silent = (
                session is not None and self._keeper.last_answer_at <= pending.started_at
            )  # uvloop's clock counts milliseconds
            trouble = None if session is None else session.trouble
            if trouble is not None and not trouble.waits:
                trouble = None  # what it stops fails at once, and is not late
            if trouble is not None:
                pending.last = BrokerBlocked(trouble.text)
            if age >= self._timeout:
                pending.error = self._keeper.timeout_error(pending.last)
                del self._in_flight[pending]
                if pending.task is not None:
                    pending.restarting = False
                    pending.task.cancel()
                else:
                    pending.finish(pending.error)
            elif age < self._timeout / 2 or pending.may_be_silent:
                waits = pending.key_requests and pending.answers is None and pending.explaining is None
                if age >= self._timeout / 2 and session is not None and waits:
                    pending.explaining = self._loop.create_task(self._explain(pending, session))
                continue
            pending.is_late = True
            # A blocked session is not dead, and stores what it was sent once the alarm ends: sent again it is doubled.
            if silent and session is not None and trouble is None:
                pending.last = pending.last or BrokerUnavailable(f"{session.describe()} said nothing.")
                self._keeper.give_up(session)
        self._set_timer()

    async def _explain(self, pending: PendingPublish, session: Broker) -> None:
        """Find out whether the publish waits for a leader that does not answer."""
        with suppress(PalermoError):
            if (why := await session.keys.silence()) is not None:
                pending.last, self._keeper.last_answer_at = why, self._loop.time()

    def _set_timer(self) -> None:
        """Set the timer for the publish that is due next."""
        now, half = self._loop.time(), self._timeout / 2
        begun = [pending.started_at for pending in list(self._in_flight) if pending.started_at]
        if begun:
            due = min(started_at + (half if now - started_at < half else self._timeout) for started_at in begun)
            self._timer = self._loop.call_at(due, self._check_deadlines)


async def _wait_for_previous(pending: PendingPublish) -> None:
    """Wait until the publish before this one is sent. Raises what that publish raised."""
    if pending.after is not None:
        await pending.after.sent.wait()
        if pending.after.error is not None:
            raise pending.after.error
