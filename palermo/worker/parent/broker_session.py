"""Keeps the worker's broker session open, reopening it after a loss with growing pauses."""

import asyncio
import gc
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from msgspec import Struct

from palermo.contract.broker import Broker, Consumer, SessionParameters, open_broker
from palermo.errors import BrokerError, BrokerUnavailable, NotFound, PalermoError

log = logging.getLogger("palermo.worker")

#: Maximum seconds between attempts to open a session. The pause starts at half a second and doubles each time.
MAX_PAUSE = 30.0

#: Seconds until a burst worker gives up.
BURST_TIMEOUT = 30.0

#: Seconds after which a session counts as good, so that there is no pause before the first attempt after its loss.
_GOOD_AFTER = 5.0


#: Maximum seconds for closing a session, since a lost one may not answer.
_CLOSE_TIMEOUT = 5.0


class BrokerSession(Struct, frozen=True, eq=False):
    """An open session and the worker's consumer."""

    broker: Broker
    consumer: Consumer


class BrokerSessions:
    """Keeps a broker session open, and replaces it when it is lost."""

    def __init__(
        self,
        session: SessionParameters,
        *,
        give_up: bool,
        consume: Callable[[Broker], Awaitable[Consumer]],
        opened: Callable[[BrokerSession], None],
        lost: Callable[[], None],
        ending: Callable[[Broker], Awaitable[None]],
    ) -> None:
        """`lost` is called when a session is given up; `ending` is awaited before any session is closed."""
        self._parameters = session
        self._give_up = give_up
        #: Number of attempts since the last good session, and when the latest session was opened.
        self._attempts = 0
        self._opened_at: float | None = None
        self._consume = consume
        self._on_open = opened
        self._on_loss = lost
        self._before_end = ending
        self._ended = asyncio.Event()
        #: The current session, if any. `available` is set while there is one.
        self.current: BrokerSession | None = None
        self.available = asyncio.Event()

    async def keep_open(self) -> None:
        """Open a session, wait for its loss, and repeat. Returns only to give up. Raises the same errors as `_open`."""
        while (broker := await self._open()) is not None:
            await self._use(broker)
            self._parameters = broker.after_failure()
            # A lost session is a megabyte of objects in reference cycles with its errors, which are collected late: a
            # worker with 40 slots held nine of them, and its memory didn't shrink again.
            del broker
            gc.collect()

    async def _open(self) -> Broker | None:
        """Open a session, retrying as long as necessary. Returns None only if a burst worker gives up after 30 seconds.

        A problem with the first session (StoreInvalid, UrlInvalid or BrokerRefused, such as a wrong password or virtual
        host) is raised. For later sessions it is retried like any other problem.
        """
        started = time.monotonic()
        first = self._opened_at is None
        if self._opened_at is not None and started - self._opened_at < _GOOD_AFTER:
            # Counted, because sessions that are lost immediately would otherwise cause attempts without a pause.
            self._attempts += 1
            await asyncio.sleep(backoff(self._attempts, random.random()))
        else:
            self._attempts = 0
        while True:
            log.debug("opening a session broker=%s", self._parameters.address)
            try:
                broker = await open_broker(self._parameters)
            except BrokerError as error:
                if first and not isinstance(error, BrokerUnavailable):
                    raise
                trouble = error
            else:
                self._opened_at = time.monotonic()
                return broker
            self._attempts += 1
            wait = backoff(self._attempts, random.random())
            if self._give_up:
                # Make the last attempt when the time is up, not up to a whole pause before.
                wait = min(wait, started + BURST_TIMEOUT - time.monotonic())
            if wait <= 0:
                log.error("broker unavailable, giving up broker=%s error=%r", self._parameters.address, str(trouble))
                return None
            log.warning(
                "broker unavailable broker=%s error=%r attempt=%d retry_in=%.1f",
                self._parameters.address,
                str(trouble),
                self._attempts,
                wait,
            )
            await asyncio.sleep(wait)

    async def _use(self, broker: Broker) -> None:
        """Take jobs in a session until it is lost, then close it."""
        session: BrokerSession | None = None
        watch: asyncio.Task[None] | None = None
        try:
            session = BrokerSession(broker, await self._consume(broker))
            log.info("connected broker=%s", broker.describe())
            self._ended.clear()
            self.current = session
            self.available.set()
            self._on_open(session)
            watch = asyncio.ensure_future(self._watch(session))
            await self._ended.wait()
        except (BrokerError, NotFound) as error:
            check_cancelled()
            log.warning("cannot take jobs broker=%s error=%r", broker.describe(), str(error))
        finally:
            if watch is not None:
                watch.cancel()
            self.current = None
            self.available.clear()
            try:
                await self._before_end(broker)
            finally:
                await _close(broker, session)

    async def _watch(self, session: BrokerSession) -> None:
        """Detect the loss of a session even while every slot is busy."""
        try:
            error = await session.broker.lost()
        except BrokerError as raised:
            error = raised
        self.lose(session, error)

    def lose(self, session: BrokerSession, error: Exception) -> None:
        """Give up a session that is lost or unusable. Only the first call for each session has an effect."""
        if session is self.current:
            log.warning("connection lost broker=%s error=%r", session.broker.describe(), str(error))
            self.current = None
            self.available.clear()
            self._ended.set()
            self._on_loss()


def check_cancelled() -> None:
    """Raise CancelledError if this task was cancelled. Call it where a broker error is caught and work continues.

    `asyncio.gather` drops its own cancellation if one of its tasks fails in the same loop iteration. This happens when
    a suspended worker resumes, and finds that its connection was lost and that TERM has arrived.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _close(broker: Broker, session: BrokerSession | None) -> None:
    try:
        with suppress(PalermoError, OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                if session is not None:
                    await session.consumer.close()
    finally:
        # Even when the worker is ending, since waiting on a silent connection would keep the process alive forever.
        with suppress(PalermoError, OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await broker.close()
        log.debug("session closed broker=%s", broker.describe())


def backoff(attempt: int, chance: float) -> float:
    """Return the seconds to wait after a number of failed attempts. The maximum is 0.5, 1, 2, 4 … 30, and the minimum
    is half of that.

    `chance`, from 0 to 1, selects a value in between, so that workers don't all reconnect at the same time.
    """
    return min(MAX_PAUSE, 0.5 * 2.0 ** min(attempt - 1, 10)) * (0.5 + chance / 2)
