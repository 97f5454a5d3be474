"""The client's I/O thread: an event loop with one session, which is opened on demand and reopened if lost.

Other threads pass messages to it and wait, and their confirms overlap on the one session. Each hop between threads
costs up to a tenth of a publish. A publish therefore takes one call into the loop and one lock back, or just the lock
if the thread can send its message itself. The work in the loop is in client/sender.py.

The `publish_timeout` setting covers everything: name lookup, connecting, discovering that a session is dead, and
publishing again. A session that doesn't answer a single small message for half of that time is treated as a black hole,
for example a connection that a firewall dropped without a reset. It is replaced while there is time to publish again.
Many messages, a large message and keyed jobs may legitimately take that long. Publishing again may duplicate a job but
never loses one.
"""

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, TypeVar

from palermo.client.journal_watch import JournalWatch, Question
from palermo.client.recorder import Recorder
from palermo.client.sender import Publish, Sender
from palermo.client.session_keeper import CLOSE_TIMEOUT, SessionKeeper
from palermo.contract.broker import Broker, SessionParameters
from palermo.contract.tasks import spawn
from palermo.contract.trouble import Trouble
from palermo.core.journal_records import JournalLevel
from palermo.core.message import Message
from palermo.core.topics import Event
from palermo.core.unique_keys import KeyRequest
from palermo.errors import BrokerUnavailable, PalermoError
from palermo.event_loop import new_event_loop

T = TypeVar("T")

#: Seconds that a caller waits beyond the loop's own deadline, in case the loop hangs.
_GRACE = 0.25


class IoThread:
    """A thread with an event loop and a session."""

    def __init__(
        self,
        session: SessionParameters,
        level: JournalLevel,
        arguments: Callable[[Message], dict[str, Any]] | None = None,
    ) -> None:
        """`level` is the journal level for enqueued jobs; `arguments` is passed to the Recorder.

        Raises BrokerUnavailable if no thread can be started.
        """
        self._timeout = session.timeout
        #: Whether the broker is a file rather than a server.
        self._on_file = session.address.scheme == "sqlite"
        self._tasks: set[asyncio.Task[None]] = set()
        self._forked: threading.Event | None = None
        self._closed = False
        self._loop = new_event_loop()
        self.recorder = Recorder(level, f"client:{os.getpid()}@{socket.gethostname()}", arguments=arguments)
        self._keeper = SessionKeeper(session, self._loop, self._on_open, self._on_lost)
        self._thread = threading.Thread(target=self._run, name="palermo-client", daemon=True)
        self._sender = Sender(self._keeper, self._loop, self._thread, self._timeout, self.recorder)
        self._watch = JournalWatch(self._keeper)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._loop.close()
            raise BrokerUnavailable(
                f"the thread for the broker connection cannot be started ({error}), because this program is exiting or"
                " has reached its limit of threads. Nothing was enqueued."
            ) from error

    # -- called by other threads

    def store(self, messages: Message | Event | Sequence[Message], key_requests: Sequence[KeyRequest] = ()) -> Publish:
        """Store messages, or publish one event, and keyed jobs. Returns once all are confirmed."""
        publish = self.send(messages, key_requests=key_requests)
        self.wait(publish)
        return publish

    async def store_async(
        self, messages: Message | Event | Sequence[Message], key_requests: Sequence[KeyRequest] = ()
    ) -> Publish:
        """Like `store`, for another event loop, which isn't blocked."""
        future: Future[None] = Future()
        publish = self.send(messages, future=future, key_requests=key_requests)
        ended, half = asyncio.wrap_future(future), self._timeout / 2
        try:
            if not (await asyncio.wait({ended}, timeout=half))[0]:
                self._call(lambda: self._sender.take_over(publish))
                await asyncio.wait({ended}, timeout=half + _GRACE)
        finally:
            if not ended.done():
                ended.cancel()
                self.abandon(publish)
        if ended.cancelled():
            raise self._keeper.timeout_error(publish.last_error)
        ended.result()
        return publish

    def send(
        self,
        messages: Message | Event | Sequence[Message],
        *,
        future: "Future[None] | None" = None,
        key_requests: Sequence[KeyRequest] = (),
    ) -> Publish:
        """Start to store messages in order, and keyed jobs. The caller must then call `wait`.

        With `future`, the caller awaits the future in an event loop.
        """
        if threading.get_ident() == self._thread.ident:
            raise _own_thread()
        publish = Publish(messages, future, key_requests)
        try:
            # Fast path: a waiting thread sends a message itself. benchmarks.enqueue one: 0.66 without, 1.07 with. An
            # event loop doesn't, because writing to a file would block it.
            written = future is None and self._sender.write(publish)
        except BaseException:  # Ctrl-C, perhaps while sending
            self.abandon(publish)
            raise
        if not written:
            try:
                self._loop.call_soon_threadsafe(self._sender.start, publish)
            except RuntimeError:  # the loop was closed in the meantime
                publish.finish(self._keeper.closed_error())
        return publish

    def wait(self, publish: Publish) -> None:
        """Wait until the publish ends, within publish_timeout of this call. Raises its error."""
        half = self._timeout / 2
        try:
            ended = publish.done.acquire(timeout=half)
            if not ended:
                self._call(lambda: self._sender.take_over(publish))
                ended = publish.done.acquire(timeout=half + _GRACE)
        except BaseException:  # Ctrl-C: the caller has stopped waiting
            self.abandon(publish)
            raise
        if not ended:
            self.abandon(publish)
            raise self._keeper.timeout_error(publish.last_error)
        if publish.error is not None:
            raise _copy_of(publish.error)

    def abandon(self, publish: Publish) -> None:
        """Stop a publish whose caller doesn't wait."""
        self._call(lambda: self._sender.abandon(publish))

    def run(
        self, function: Callable[[Broker], Coroutine[Any, Any, T]], *, again: bool = False, within: float | None = None
    ) -> T:
        """Run the coroutine function with the session, and return its result.

        `within` limits the whole call in seconds; without it, only opening the session is limited. With `again`, the
        function runs a second time on a new session if the session turns out to be lost.
        """
        return self.result(self._begin(lambda: self._ask(function, again, within)))

    def watch(self, question: Question[T]) -> "Future[T]":
        """Start the coroutine function with the shared journal subscription, and return a future."""
        return self._begin(lambda: question(self._watch))

    def result(self, future: "Future[T]") -> T:
        """Wait for a future without a time limit, and return its result."""
        try:
            return future.result()
        except CancelledError:
            raise self._keeper.closed_error() from None
        except BaseException:  # Ctrl-C must also stop the operation on the broker
            future.cancel()
            raise

    def write_record(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Queue a record for the journal."""
        self._call(lambda: self.recorder.add(kind, fields))

    def close(self) -> None:
        """End the session and the thread within a bounded time. Pending publishes fail. Safe to call again."""
        if self._closed:
            return
        self._closed = True
        self._call(lambda: spawn(self._tasks, self._shut_down()))
        if threading.get_ident() != self._thread.ident:
            self._thread.join(2 * CLOSE_TIMEOUT + _GRACE)

    def pause_for_fork(self) -> None:
        """Pause before a fork, until `resume_after_fork`, and close a session on a SQLite file.

        The thread may be importing modules for its first session, whose import locks a child would find held forever.
        An inherited SQLite file is also unsafe: its locks belong to the process, so a child could wait forever or
        corrupt the file. Connections to servers stay open, because the child never uses them.
        """
        if not self.alive or threading.get_ident() == self._thread.ident:
            return
        resting = threading.Event()
        forked = self._forked = threading.Event()
        rest = partial(self._keeper.rest_for_fork, resting, forked, on_file=self._on_file)
        self._call(lambda: spawn(self._tasks, rest()))
        resting.wait(2 * CLOSE_TIMEOUT)

    def resume_after_fork(self) -> None:
        """After a fork, in the parent: continue."""
        if self._forked is not None:
            self._forked.set()
            self._forked = None

    @property
    def trouble(self) -> Trouble | None:
        """The problem reported by the broker on the session, if any."""
        session = self._keeper.session
        return None if session is None else session.trouble

    @property
    def alive(self) -> bool:
        """Whether the thread can still be used."""
        return not self._closed and self._thread.is_alive()

    def _begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> "Future[T]":
        if threading.get_ident() == self._thread.ident:
            raise _own_thread()
        if self._closed:
            raise self._keeper.closed_error()
        return asyncio.run_coroutine_threadsafe(work(), self._loop)

    def _call(self, function: Callable[[], Any]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            return  # the loop has been closed

    # -- in the thread

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            # Don't call shutdown_default_executor, which waits for a hanging name lookup.
            self._loop.close()

    async def _ask(self, function: Callable[[Broker], Coroutine[Any, Any, T]], again: bool, within: float | None) -> T:
        known = self._keeper.session
        try:
            async with asyncio.timeout(within) as limit:
                while True:
                    session = await self._keeper.get_within_timeout()
                    try:
                        return await function(session)
                    except BrokerUnavailable as error:
                        if not self._keeper.give_up_after(error, session) or not again or session is not known:
                            raise
        except TimeoutError:
            if not limit.expired():
                raise
            raise self._keeper.timeout_error(within=within, unsure=not again) from None

    def _on_open(self, session: Broker) -> None:
        self.recorder.attach(session.journal)

    def _on_lost(self, session: Broker) -> None:
        self.recorder.detach()
        self._sender.session_lost()

    async def _shut_down(self) -> None:
        self._sender.close()
        try:
            await self.recorder.close(CLOSE_TIMEOUT)
            await _cancel_others()
            await self._keeper.close()
            await _cancel_others()  # on a slow machine, a connection to the leader may still be closing
            await asyncio.sleep(0)  # transports close in the next iteration of the loop
        finally:
            self._loop.stop()


async def _cancel_others() -> None:
    """Cancel all other tasks of this loop, and wait a bounded time for them to end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=CLOSE_TIMEOUT)


def _own_thread() -> RuntimeError:
    return RuntimeError(
        "this method was called in the client's own thread, where it would block forever. Call it in another thread."
    )


def _copy_of(error: BaseException) -> BaseException:
    """Return a copy of a shared error, so that the original doesn't accumulate the traceback of each thread that raises
    it.
    """
    if not isinstance(error, PalermoError):
        return error
    copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__
    return copy
