"""The worker's way to its broker: opened again and again, with patience that grows, and held while it lasts."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from palermo.broker import Broker, Consumer, Session, open_broker
from palermo.core.values import dataclass
from palermo.errors import BrokerError, BrokerRefused, BrokerUnavailable, NotFound, PalermoError
from palermo.worker.timekeeping import Duties, keeping_time

log = logging.getLogger("palermo.worker")

#: Seconds between attempts: half a second doubled each time, and never more than this.
MAX_PAUSE = 30.0

#: Seconds after which a burst worker gives up.
BURST_PATIENCE = 30.0

#: A session that lasted this long, in seconds, was a good one: the next attempt need not wait.
_GOOD = 5.0


#: Seconds that saying goodbye to a session may take; one that is lost may not answer.
_GOODBYE = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class Live:
    """A session that is open, and the worker's claim on jobs in it."""

    broker: Broker
    consumer: Consumer


class Link:
    """Keeps a session with the broker open, whatever happens to it."""

    def __init__(
        self,
        session: Session,
        *,
        give_up: bool,
        duties: Duties = Duties(),  # noqa: B008 - frozen
        consume: Callable[[Broker], Awaitable[Consumer]],
        opened: Callable[[Live], None],
        lost: Callable[[], None],
    ) -> None:
        self._opener = Opener(session, give_up=give_up)
        self._duties = duties
        self._consume = consume
        self._on_open = opened
        self._on_loss = lost
        self._ended = asyncio.Event()
        #: The session to use now, if there is one; `available` is set as long.
        self.live: Live | None = None
        self.available = asyncio.Event()

    async def hold(self) -> None:
        """Open, wait until it is lost, and again; returns only to give up. Raises as Opener.open does."""
        while True:
            broker = await self._opener.open()
            if broker is None:
                return
            live: Live | None = None
            watch: asyncio.Task[None] | None = None
            try:
                live = Live(broker, await self._consume(broker))
                log.info("connected broker=%s", broker.describe())
                self._ended.clear()
                self.live = live
                self.available.set()
                self._on_open(live)
                watch = asyncio.ensure_future(self._watch(live))
                async with keeping_time(broker, self._duties):
                    await self._ended.wait()
            except (BrokerError, NotFound) as error:
                log.warning("cannot take jobs broker=%s error=%r", broker.describe(), str(error))
            finally:
                if watch is not None:
                    watch.cancel()
                self.live = None
                self.available.clear()
                await _leave(broker, live)

    async def _watch(self, live: Live) -> None:
        """Notice the loss of a session even while every slot is busy and none asks it for anything."""
        try:
            error = await live.broker.lost()
        except BrokerError as raised:
            error = raised
        self.lose(live, error)

    def lose(self, live: Live, error: Exception) -> None:
        """This session is of no use any more; whoever notices first says so."""
        if live is self.live:
            log.warning("connection lost broker=%s error=%r", live.broker.describe(), str(error))
            self.live = None
            self.available.clear()
            self._ended.set()
            self._on_loss()


async def _leave(broker: Broker, live: Live | None) -> None:
    try:
        with suppress(PalermoError, OSError, TimeoutError):
            async with asyncio.timeout(_GOODBYE):
                if live is not None:
                    await live.consumer.close()
    finally:
        # Also when the worker ends meanwhile: what waits for a silent line would keep the process for ever.
        with suppress(PalermoError, OSError, TimeoutError):
            async with asyncio.timeout(_GOODBYE):
                await broker.close()


class Opener:
    """Opens sessions with the broker, and remembers how that went lately."""

    def __init__(self, session: Session, *, give_up: bool) -> None:
        self._session = session
        self._give_up = give_up
        self._attempts = 0
        self._opened_at: float | None = None

    async def open(self) -> Broker | None:
        """A session, however long that takes; None only from one that gives up, after 30 seconds.

        The first session of a worker must be possible: StoreInvalid and UrlInvalid come out
        then. Later a full disk or a replaced file is waited out like any other trouble.
        """
        started = time.monotonic()
        first = self._opened_at is None
        if self._opened_at is not None and started - self._opened_at < _GOOD:
            # It opens and is lost at once; without a pause this would be a storm.
            self._attempts += 1
            await asyncio.sleep(pause(self._attempts, random.random()))
        else:
            self._attempts = 0
        while True:
            try:
                broker = await open_broker(self._session)
            except (BrokerUnavailable, BrokerRefused) as error:
                trouble: BrokerError = error
            except BrokerError as error:
                if first:
                    raise
                trouble = error
            else:
                self._opened_at = time.monotonic()
                return broker
            self._attempts += 1
            wait = pause(self._attempts, random.random())
            if self._give_up and time.monotonic() - started + wait > BURST_PATIENCE:
                log.error("broker unavailable, giving up broker=%s error=%r", self._session.address, str(trouble))
                return None
            log.warning(
                "broker unavailable broker=%s error=%r attempt=%d retry_in=%.1f",
                self._session.address,
                str(trouble),
                self._attempts,
                wait,
            )
            await asyncio.sleep(wait)


def pause(attempt: int, chance: float) -> float:
    """Seconds to wait after this many attempts that failed: up to 0.5, 1, 2, 4 … 30, and at least half of that.

    The half that is left to chance, a number from 0 to 1, keeps many workers from coming back at the same instant.
    """
    return min(MAX_PAUSE, 0.5 * 2.0 ** min(attempt - 1, 10)) * (0.5 + chance / 2)
