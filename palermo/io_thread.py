"""The client's private thread: one event loop, one session with the broker, opened when needed and again when lost.

Threads hand it messages and wait; their confirms overlap on the one session. A publish is
one call into the loop and one lock back, or only that where the thread may send its message itself, since each
hop between threads costs as much as a tenth of a whole publish. What becomes of it in the loop is in carrier.py.

What is given to a publish is the setting publish_timeout, over everything: name lookup,
connecting, a session that turns out to be dead, publishing again. A session that answers
nothing at all for half of that is taken for a black hole (a firewall that forgot us sends
no reset) and replaced, while there is time to publish again. Publishing again may double
a job and never loses one.
"""

import asyncio
import concurrent.futures.thread  # noqa: F401 - has handlers of its own, before which ours must be asked
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from palermo import forking
from palermo.broker import Broker, Session
from palermo.carrier import Carrier
from palermo.core.journal import Level
from palermo.core.keys import Claim
from palermo.core.message import Message
from palermo.core.topics import Event
from palermo.core.unique import Answer
from palermo.errand import Errand
from palermo.errors import BrokerUnavailable, PalermoError
from palermo.recorder import Recorder, record_stored
from palermo.session_keeper import CLOSE_TIMEOUT, SessionKeeper
from palermo.waiting import Watch

T = TypeVar("T")

forking.watch()

#: What a caller waits longer than the loop's own deadline: only a loop that hangs lets it come to that.
_GRACE = 0.25

#: Seconds until what threads have stored by themselves is told to the recorder.
_RECORD_EVERY = 0.05


class IoThread:
    """An event loop in a thread of its own, and the session it keeps."""

    def __init__(self, session: Session, level: Level) -> None:
        """`level` says how much of what is enqueued is written into the journal."""
        self._timeout = session.timeout
        #: Whether the session is on a file, and not with a server.
        self._on_file = not session.address.hosts
        self._working: set[asyncio.Task[None]] = set()
        self._forked: threading.Event | None = None
        self._closed = False
        self._loop = _new_loop()
        self.recorder = Recorder(level, f"client:{os.getpid()}@{socket.gethostname()}")
        self._keeper = SessionKeeper(session, self._loop, self._opened, self._lost)
        self._carrier = Carrier(self._keeper, self._loop, self._timeout, self._record)
        self._watch: Watch | None = None
        #: Stored by the threads that enqueued them, and not yet told to the recorder; whether the loop will see to it.
        self._unrecorded: deque[Message] = deque()
        self._recording = False
        self._thread = threading.Thread(target=self._run, name="palermo-client", daemon=True)
        self._thread.start()

    # -- called by other threads

    def publish(self, message: Message | Event) -> None:
        """Store one message, or tell one event; returns once that is confirmed. Raises as the broker does, in time."""
        if self._on_file and isinstance(message, Message) and self._published_here(message):
            return
        errand = Errand(message, None, None)
        try:
            posted = self._is_outside and self._carrier.post_from_outside(errand)
            ended = posted and errand.wait(self._timeout / 2)
        except BaseException:  # Ctrl-C, perhaps in the middle of sending it
            self.abandon(errand)
            raise
        if not posted:
            self.wait(self._start(errand))
        elif not ended:
            self._call(lambda: self._carrier.adopt(errand))
            self.wait(errand, self._timeout / 2)
        elif errand.error is not None:
            raise _again(errand.error)

    def _published_here(self, message: Message) -> bool:
        """Whether this thread has stored the message by itself."""
        session = self._keeper.session
        if session is None or self._closed or not self._is_outside:
            return False
        if not session.publish_here(message):
            return False
        self._unrecorded.append(message)
        if not self._recording:
            self._recording = True
            self._call(self._record_soon)
        return True

    async def publish_async(self, message: Message | Event) -> None:
        """`publish` for another event loop, which goes on meanwhile."""
        await self._arrived(message)

    async def _arrived(self, messages: Message | Event | Sequence[Message], claims: Sequence[Claim] = ()) -> Errand:
        future: Future[None] = Future()
        errand = self.send(messages, future=future, claims=claims)
        try:
            async with asyncio.timeout(self._timeout + _GRACE):
                await asyncio.wrap_future(future)
            return errand
        except TimeoutError:
            self.abandon(errand)
            raise self._keeper.late(errand.last) from None
        except asyncio.CancelledError:
            self.abandon(errand)
            raise

    def claim(self, claim: Claim) -> Answer:
        """`publish` for a job that needs a key; what came of it."""
        errand = self.send((), claims=[claim])
        self.wait(errand)
        return _only(errand)

    async def claim_async(self, claim: Claim) -> Answer:
        """`claim` for another event loop."""
        return _only(await self._arrived((), [claim]))

    def send(
        self,
        messages: Message | Event | Sequence[Message],
        *,
        after: Errand | None = None,
        future: "Future[None] | None" = None,
        claims: Sequence[Claim] = (),
    ) -> Errand:
        """Begin to store one message, or many in their order, and jobs that need keys; to be waited for."""
        return self._start(Errand(messages, after, future, claims))

    @property
    def _is_outside(self) -> bool:
        return threading.get_ident() != self._thread.ident

    def _start(self, errand: Errand) -> Errand:
        if not self._is_outside:
            raise RuntimeError("enqueue was called in the client's own thread, which would wait for itself.")
        try:
            self._loop.call_soon_threadsafe(self._carrier.start, errand)
        except RuntimeError:  # the loop has been closed since
            errand.finish(self._keeper.gone())
        return errand

    def wait(self, errand: Errand, timeout: float | None = None) -> None:
        """Wait until the errand has ended, and raise what it raised. Errands in a row are waited for in their order.

        It has the setting publish_timeout unless given less.
        """
        try:
            ended = errand.wait((self._timeout if timeout is None else timeout) + _GRACE)
        except BaseException:  # Ctrl-C: nobody waits any more
            self.abandon(errand)
            raise
        if not ended:
            self.abandon(errand)
            raise self._keeper.late(errand.last)
        if errand.error is not None:
            raise _again(errand.error)

    def abandon(self, errand: Errand) -> None:
        """Stop working on an errand that nobody waits for any more."""
        self._call(lambda: self._carrier.abandon(errand))

    def run(self, function: Callable[[Broker], Coroutine[Any, Any, T]], *, again: bool = False) -> T:
        """What the coroutine function makes of the session, as long as that takes; opening the session is bounded.

        With `again` it is run a second time, on a fresh session, if the session proves to be lost.
        """
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError("the client was asked in its own thread, which would wait for itself.")
        if self._closed:
            raise self._keeper.gone()
        return self.result(asyncio.run_coroutine_threadsafe(self._ask(function, again), self._loop))

    def watch(self, function: Callable[[Watch], Coroutine[Any, Any, T]]) -> "Future[T]":
        """Begin what the coroutine function does with the one subscription to the journal; to be waited for."""
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError("the client was asked to wait in its own thread, which would wait for itself.")
        if self._closed:
            raise self._keeper.gone()
        return asyncio.run_coroutine_threadsafe(self._with_watch(function), self._loop)

    def result(self, future: "Future[T]") -> T:
        """What was begun gives, as long as that takes."""
        try:
            return future.result()
        except CancelledError:
            raise self._keeper.gone() from None
        except BaseException:  # Ctrl-C: what it does on the broker must stop too
            future.cancel()
            raise

    def write_down(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Write a record into the journal, soon."""
        self._call(lambda: self.recorder.add(kind, fields))

    def close(self) -> None:
        """End the session and the thread, within a bounded time; what is in flight fails. May be called again."""
        if self._closed:
            return
        self._closed = True
        self._call(lambda: self._work(self._shut_down()))
        if threading.get_ident() != self._thread.ident:
            self._thread.join(2 * CLOSE_TIMEOUT + _GRACE)

    def pause(self) -> None:
        """Before a fork: let go of a session on a file, and hold still until `go_on`.

        SQLite's locks belong to the process, and a child that finds the file open takes them
        for its own: it could wait for ever, or write where nobody reads. A connection to a
        server is safe, since the child never touches it.
        """
        if not self._on_file or not self.alive or threading.get_ident() == self._thread.ident:
            return
        resting = threading.Event()
        forked = self._forked = threading.Event()
        self._call(lambda: self._work(self._keeper.rest(resting, forked)))
        resting.wait(2 * CLOSE_TIMEOUT)

    def go_on(self) -> None:
        """After a fork, in the parent."""
        if self._forked is not None:
            self._forked.set()
            self._forked = None

    @property
    def alive(self) -> bool:
        """Whether it can still be used."""
        return not self._closed and self._thread.is_alive()

    def _call(self, function: Callable[[], Any]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            return  # the loop has been closed, and there is nothing left to do

    # -- in the thread

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            # Not shutdown_default_executor: it would wait for a name lookup that hangs.
            self._loop.close()

    async def _ask(self, function: Callable[[Broker], Coroutine[Any, Any, T]], again: bool) -> T:
        found = self._keeper.session
        session = found or await self._keeper.get_in_time()
        try:
            return await function(session)
        except BrokerUnavailable:
            self._keeper.lose(session)
            if not again or found is None:
                raise
        return await self._ask(function, again=False)

    def _opened(self, session: Broker) -> None:
        self.recorder.attach(session.journal)

    async def _with_watch(self, function: Callable[[Watch], Coroutine[Any, Any, T]]) -> T:
        if self._watch is None:
            self._watch = Watch(self._keeper)
        return await function(self._watch)

    def _lost(self, session: Broker) -> None:
        self.recorder.detach()
        self._carrier.move(session)

    def _record_soon(self) -> None:
        """Not now: a thread that enqueues one job after the other would wake this one each time."""
        self._loop.call_later(_RECORD_EVERY, self._record_theirs)

    def _record_theirs(self) -> None:
        self._recording = False  # first: what is added from here on has it done again
        while self._unrecorded:
            record_stored(self.recorder, self._unrecorded.popleft())

    def _record(self, errand: Errand) -> None:
        record_stored(self.recorder, errand.messages)
        if errand.claims:
            record_stored(self.recorder, errand.stored)

    def _work(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _shut_down(self) -> None:
        self._carrier.close()
        self._record_theirs()
        try:
            await self.recorder.close(CLOSE_TIMEOUT)
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            if rest:
                await asyncio.wait(rest, timeout=CLOSE_TIMEOUT)
            await self._keeper.close()
        finally:
            self._loop.stop()


def _only(errand: Errand) -> Answer:
    assert errand.answers is not None
    return errand.answers[0]


def _again(error: BaseException) -> BaseException:
    """An error to raise in this thread: one that several threads share must not collect all their tracebacks."""
    if not isinstance(error, PalermoError):
        return error
    copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__
    return copy


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
