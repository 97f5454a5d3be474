"""One session with the broker, shared by all who need it: opened when first needed, and again when it was lost.

It belongs to the client's event loop, and none of it may be called from another thread.
"""

import asyncio
import threading
from collections.abc import Callable

from palermo.broker import Broker, Session, open_broker
from palermo.errors import BrokerUnavailable, PalermoError

#: The most that ending a session may take, in seconds.
CLOSE_TIMEOUT = 1.0


class SessionKeeper:
    """Opens, hands out, replaces and ends the session."""

    def __init__(
        self,
        settings: Session,
        loop: asyncio.AbstractEventLoop,
        on_open: Callable[[Broker], None],
        on_lost: Callable[[Broker], None],
    ) -> None:
        """`on_open` is told of each session, `on_lost` when it is let go of, while its users may still wait for it."""
        self.session: Broker | None = None
        #: When it last answered, on the loop's clock.
        self.heard = 0.0
        self._settings = settings
        self._loop = loop
        self._on_open = on_open
        self._on_lost = on_lost
        self._opening: asyncio.Task[Broker] | None = None
        #: While set, none is opened; who needs one waits for it.
        self._paused: asyncio.Event | None = None
        self._ending: set[asyncio.Task[None]] = set()

    async def get(self) -> Broker:
        """The session, opened if there is none; all who wait share one attempt, and its error."""
        while True:
            while self._paused is not None:
                await self._paused.wait()
            if self.session is not None:
                return self.session
            if self._opening is None or self._opening.done():
                self._opening = self._loop.create_task(self._open())
                # Those who wait may have gone by the time it fails.
                self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())
            try:
                return await asyncio.shield(self._opening)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # Not we, but the attempt was called off, for a fork.

    async def get_in_time(self) -> Broker:
        """The same, within the session's timeout. Raises BrokerUnavailable."""
        try:
            async with asyncio.timeout(self._settings.timeout):
                return await self.get()
        except TimeoutError:
            raise self.late() from None

    def lose(self, session: Broker) -> None:
        """Let go of a session that is lost, or as good as."""
        if session is self.session:
            self.session = None
            self._on_lost(session)
            self._end(session)

    async def rest(self, resting: threading.Event, forked: threading.Event) -> None:
        """End the session, say that nothing is open, and hold the whole loop still until the fork is done."""
        self._paused = asyncio.Event()
        try:
            if self._opening is not None and self._opening.cancel():
                await asyncio.wait([self._opening])
            if self.session is not None:
                self.lose(self.session)
            if self._ending:
                await asyncio.wait(self._ending)
        finally:
            resting.set()
            forked.wait(CLOSE_TIMEOUT)  # bounded, should the fork fail
            self._paused.set()
            self._paused = None

    async def close(self) -> None:
        """End the session for good."""
        if self.session is not None:
            self._end(self.session)
            self.session = None
        if self._ending:
            await asyncio.wait(self._ending)

    def late(self, last: BrokerUnavailable | None = None) -> BrokerUnavailable:
        """The error for a time that is over; `last` is why the latest attempt failed."""
        late = BrokerUnavailable(
            f"the broker at {self._settings.address} did not answer within {self._settings.timeout:g} s."
            + (f" {last}" if last else "")
        )
        late.__cause__ = last
        return late

    def gone(self) -> BrokerUnavailable:
        """The error for what was asked of a client that is being closed."""
        return BrokerUnavailable(f"the client of {self._settings.address} was closed meanwhile.")

    async def _open(self) -> Broker:
        self.session = await open_broker(self._settings)
        self.heard = self._loop.time()
        self._on_open(self.session)
        return self.session

    def _end(self, session: Broker) -> None:
        task = self._loop.create_task(_close(session))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


async def _close(session: Broker) -> None:
    """Close a session that may be lost: without waiting long, and whatever comes of it."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await session.close()
    except (PalermoError, OSError, TimeoutError):
        return
