"""The client's private thread: one event loop, one session with the broker, opened when needed and again when lost.

Threads hand it messages and wait; their confirms overlap on the one session. A publish is
one call into the loop and one lock back, since each hop between threads costs as much as a
tenth of a whole publish. Deadlines are kept by one timer for all that is in flight, not by
one each.

What is given to a publish is the setting publish_timeout, over everything: name lookup,
connecting, a session that turns out to be dead, publishing again. A session that answers
nothing at all for half of that is taken for a black hole (a firewall that forgot us sends
no reset) and replaced, while there is time to publish again. Publishing again may double
a job and never loses one.
"""

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from palermo.broker import Broker, Session
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

#: Between attempts to open a session; doubled each time up to the last.
_FIRST_PAUSE, _LAST_PAUSE = 0.05, 0.5

#: What a caller waits longer than the loop's own deadline: only a loop that hangs lets it come to that.
_GRACE = 0.25


class IoThread:
    """An event loop in a thread of its own, and the session it keeps."""

    def __init__(self, session: Session, level: Level) -> None:
        """`level` says how much of what is enqueued is written into the journal."""
        self._timeout = session.timeout
        #: Whether the session is on a file, and not with a server.
        self._on_file = not session.address.hosts
        #: What has begun and not ended, in the order of beginning, which is that of the deadlines.
        self._flight: dict[Errand, None] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._working: set[asyncio.Task[None]] = set()
        self._forked: threading.Event | None = None
        self._closed = False
        self._loop = _new_loop()
        self.recorder = Recorder(level, f"client:{os.getpid()}@{socket.gethostname()}")
        self._keeper = SessionKeeper(session, self._loop, self._opened, self._move)
        self._watch: Watch | None = None
        self._thread = threading.Thread(target=self._run, name="palermo-client", daemon=True)
        self._thread.start()

    # -- called by other threads

    def publish(self, message: Message | Event) -> None:
        """Store one message, or tell one event; returns once that is confirmed. Raises as the broker does, in time."""
        self.wait(self.send(message))

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
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError("enqueue was called in the client's own thread, which would wait for itself.")
        errand = Errand(messages, after, future, claims)
        try:
            self._loop.call_soon_threadsafe(self._start, errand)
        except RuntimeError:  # the loop has been closed since
            errand.finish(self._keeper.gone())
        return errand

    def wait(self, errand: Errand) -> None:
        """Wait until the errand has ended, and raise what it raised. Errands in a row are waited for in their order."""
        try:
            ended = errand.wait(self._timeout + _GRACE)
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
        self._call(lambda: errand.task and errand.task.cancel())

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

    def _start(self, errand: Errand) -> None:
        if self._closed:
            errand.finish(self._keeper.gone())
            return
        errand.task = self._loop.create_task(self._carry(errand))

    async def _carry(self, errand: Errand) -> None:
        """Publish the errand's messages, on as many sessions as it takes, until its time is over."""
        error: BaseException | None = None
        try:
            if errand.after is not None and not errand.after.finished and errand.after.task is not None:
                await asyncio.wait([errand.after.task])
            if errand.after is not None and errand.after.error is not None:
                raise errand.after.error
            errand.began = self._loop.time()
            self._flight[errand] = None
            if self._alarm is None:
                self._alarm = self._loop.call_at(errand.began + self._timeout / 2, self._check)
            await self._deliver(errand)
        except asyncio.CancelledError:
            error = errand.error or (self._keeper.gone() if self._closed else self._keeper.late(errand.last))
        except BaseException as raised:
            error = raised
        finally:
            self._flight.pop(errand, None)
            errand.finish(error)

    async def _deliver(self, errand: Errand) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                if await self._attempt(errand):
                    return
                await asyncio.sleep(pause)
            except asyncio.CancelledError:
                if not errand.moved or errand.task is None:
                    raise
                errand.moved = False
                errand.task.uncancel()
            pause = min(2 * pause, _LAST_PAUSE)

    async def _attempt(self, errand: Errand) -> bool:
        """Publish once; False if the session could not be opened or was lost."""
        session = self._keeper.session
        try:
            if session is None:
                session = await self._keeper.get()
            errand.session = session
            if errand.claims and errand.answers is None:
                errand.answers = await session.keys.enqueue(errand.claims)
            if isinstance(errand.messages, Event):
                await session.events.publish(errand.messages)
            elif isinstance(errand.messages, Sequence):
                if errand.messages:
                    await session.publish_many(errand.messages)
            else:
                await session.publish(errand.messages)
        except BrokerUnavailable as error:
            errand.last = error
            if session is not None:
                self._keeper.lose(session)
            return False
        finally:
            errand.session = None
        self._keeper.heard = self._loop.time()
        record_stored(self.recorder, errand.messages)
        record_stored(self.recorder, errand.stored)
        return True

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

    def _move(self, session: Broker) -> None:
        """Have what is in flight on a session that is given up begin anew with the next."""
        self.recorder.detach()
        for errand in self._flight:
            if errand.session is session and errand.task is not None and not errand.moved:
                errand.moved = True
                errand.task.cancel()

    def _check(self) -> None:
        """Fail what is overdue, and replace a session that has said nothing since an errand began half its time ago."""
        self._alarm = None
        now = self._loop.time()
        for errand in list(self._flight):
            age = now - errand.began
            session = errand.session
            silent = session is not None and self._keeper.heard <= errand.began  # uvloop's clock counts milliseconds
            blocked = session is not None and session.blocked
            if session is not None and blocked:
                errand.last = BrokerUnavailable(f"{session.describe()}.")
            if age >= self._timeout:
                errand.error = self._keeper.late(errand.last)
                del self._flight[errand]
                if errand.task is not None:
                    errand.moved = False
                    errand.task.cancel()
            elif age < self._timeout / 2 or errand.patient:
                continue
            errand.patient = True
            # Under an alarm it is not dead, and stores what it was sent once that ends: sent again it would be doubled.
            if silent and session is not None and not blocked:
                errand.last = errand.last or BrokerUnavailable(f"{session.describe()} said nothing.")
                self._keeper.lose(session)
        self._arm()

    def _arm(self) -> None:
        """Set the alarm for what is due next."""
        if self._flight:
            now = self._loop.time()
            half = self._timeout / 2
            due = min(errand.began + (half if now - errand.began < half else self._timeout) for errand in self._flight)
            self._alarm = self._loop.call_at(due, self._check)

    def _work(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _shut_down(self) -> None:
        for errand in list(self._flight):
            errand.error = self._keeper.gone()
            errand.moved = False
        if self._alarm is not None:
            self._alarm.cancel()
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
