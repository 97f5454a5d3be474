"""The client's session with the broker, shared by all callers, opened on demand and reopened if lost.

It must be used only in the client's event loop.
"""

import asyncio
import threading
from collections.abc import Callable

from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.contract.tasks import spawn
from palermo.errors import BrokerBlocked, BrokerUnavailable, LeaderUnavailable, PalermoError

#: Maximum seconds for ending a session.
CLOSE_TIMEOUT = 1.0


class SessionKeeper:
    """Opens, hands out, replaces and ends the session."""

    def __init__(
        self,
        settings: SessionParameters,
        loop: asyncio.AbstractEventLoop,
        on_open: Callable[[Broker], None],
        on_lost: Callable[[Broker], None],
    ) -> None:
        """`on_open` is called with each new session, and `on_lost` with each lost one, which may still be in use."""
        self.session: Broker | None = None
        #: When the session last answered, by the loop's clock.
        self.last_answer_at = 0.0
        self._settings = settings
        self._loop = loop
        self._on_open = on_open
        self._on_lost = on_lost
        self._opening: asyncio.Task[Broker] | None = None
        #: While set, no session is opened, and callers that need one wait for it.
        self._paused: asyncio.Event | None = None
        self._ending: set[asyncio.Task[None]] = set()

    async def get(self) -> Broker:
        """Return the session, opened if necessary. All waiting callers share one attempt and its error."""
        while True:
            while self._paused is not None:
                await self._paused.wait()
            if self.session is not None and self.session.is_lost:
                self.give_up(self.session)  # it may have been lost long ago, which is not this caller's error
            if self.session is not None:
                return self.session
            if self._opening is None or self._opening.done():
                self._opening = self._loop.create_task(self._open())
                # Retrieve the error, in case no caller is waiting any more.
                self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())
            opening = self._opening
            await asyncio.wait({opening})
            if not opening.cancelled():  # cancelled for a fork
                return opening.result()

    async def get_within_timeout(self) -> Broker:
        """`get` within the session's timeout. Raises BrokerUnavailable."""
        try:
            async with asyncio.timeout(self._settings.timeout):
                return await self.get()
        except TimeoutError:
            raise self.timeout_error() from None

    def give_up(self, session: Broker) -> None:
        """Discard a session that is lost or useless."""
        if session is self.session:
            self._settings = session.after_failure()
            self._leave(session)

    def give_up_after(self, error: BrokerUnavailable, session: Broker) -> bool:
        """Discard the session that raised this error and return True, unless a new one would get no answer either."""
        if isinstance(error, LeaderUnavailable | BrokerBlocked) and not session.is_lost:
            return False
        self.give_up(session)
        return True

    async def rest_for_fork(self, resting: threading.Event, forked: threading.Event, *, on_file: bool) -> None:
        """Set `resting`, and block the whole loop until the fork is done. A session on a file is closed first."""
        if not on_file:
            resting.set()
            forked.wait(CLOSE_TIMEOUT)
            return
        self._paused = asyncio.Event()
        try:
            if self._opening is not None and self._opening.cancel():
                await asyncio.wait([self._opening])
            if self.session is not None:
                self._leave(self.session)
            if self._ending:
                await asyncio.wait(self._ending)
        finally:
            resting.set()
            forked.wait(CLOSE_TIMEOUT)  # limited in case the fork fails
            self._paused.set()
            self._paused = None

    async def close(self) -> None:
        """End the session permanently."""
        if self.session is not None:
            spawn(self._ending, _close(self.session))
            self.session = None
        if self._ending:
            await asyncio.wait(self._ending)

    def timeout_error(
        self, last: BrokerUnavailable | None = None, *, within: float | None = None, unsure: bool = False
    ) -> BrokerUnavailable:
        """Return the error for an expired time limit: `within` seconds, by default that of the session.

        `last` is the error of the last attempt. `unsure` is for a request that may have been executed.
        """
        if isinstance(last, LeaderUnavailable | BrokerBlocked):
            return last
        timeout_error = BrokerUnavailable(
            f"the broker at {self._settings.address} did not answer within {within or self._settings.timeout:g} s."
            + (" Check whether it was done." if unsure else "")
            + (f" {last}" if last else "")
        )
        timeout_error.__cause__ = last
        return timeout_error

    def closed_error(self) -> BrokerUnavailable:
        """The error for a request to a client that is closing."""
        return BrokerUnavailable(f"the client of {self._settings.address} was closed.")

    async def _open(self) -> Broker:
        self.session = await open_broker(self._settings)
        self.last_answer_at = self._loop.time()
        self._on_open(self.session)
        return self.session

    def _leave(self, session: Broker) -> None:
        self.session = None
        self._on_lost(session)
        spawn(self._ending, _close(session))


async def _close(session: Broker) -> None:
    """Close a session that may be lost, with a short timeout and ignoring errors."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await session.close()
    except (PalermoError, OSError, TimeoutError):
        return
