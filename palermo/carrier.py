"""What carries errands to the broker, in the client's loop: on as many sessions as it takes, until their time is over.

One message on a session that is ready is sent at once and answered by a callback, without a task: that is nearly every
enqueue, and most of these are sent by the thread that waits for them. Whatever comes in between, a session to open, a
queue to make, an error, calls for a task, which goes on where that ended. Deadlines are kept by one timer for all that
is in flight, not by one each.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from palermo.broker import Broker
from palermo.core.message import Message
from palermo.core.topics import Event
from palermo.errand import Errand
from palermo.errors import BrokerUnavailable, PalermoError
from palermo.session_keeper import SessionKeeper

#: Between attempts to open a session; doubled each time up to the last.
_FIRST_PAUSE, _LAST_PAUSE = 0.05, 0.5


class Carrier:
    """The errands of one loop. None of it but `post_from_outside` may be called from another thread."""

    def __init__(
        self,
        keeper: SessionKeeper,
        loop: asyncio.AbstractEventLoop,
        timeout: float,
        stored: Callable[[Errand], None],
    ) -> None:
        """Each errand has so many seconds; `stored` is told of each that is done."""
        self._keeper = keeper
        self._loop = loop
        self._timeout = timeout
        self._stored = stored
        self._closed = False
        #: What has begun and not ended, in the order of beginning, which is that of the deadlines.
        self._flight: dict[Errand, None] = {}
        self._alarm: asyncio.TimerHandle | None = None
        #: What other threads have sent themselves. They see to it that it is adopted when it takes long.
        self._outside: dict[Errand, None] = {}

    @property
    def busy(self) -> bool:
        """Whether any errand is under way."""
        return bool(self._flight or self._outside)

    def post_from_outside(self, errand: Errand) -> bool:
        """Send an errand of one message now, in the thread that is to wait for it, and not in the loop's.

        Whether that could be done; if not, it is to be given to `start`. If so, the thread has it adopted should it not
        have ended in half of its time.
        """
        session, message = self._keeper.session, errand.messages
        post = None if session is None else session.outside
        if session is None or post is None or not isinstance(message, Message):
            return False
        errand.session = session
        self._outside[errand] = None
        if not post(message, partial(self._posted, errand, session)):
            self._outside.pop(errand, None)
            return False
        if self._keeper.session is not session or self._closed:
            # Given up between our look and the sending: whoever moved its errands may have missed this one.
            try:
                self._loop.call_soon_threadsafe(self.adopt, errand)
            except RuntimeError:  # the loop has been closed since
                errand.finish(self._keeper.gone())
        return True

    def adopt(self, errand: Errand) -> None:
        """Go on with what another thread has sent, and waits for in vain."""
        if errand.finished or errand not in self._outside:
            return
        if self._closed:
            self._end(errand, self._keeper.gone())
            return
        del self._outside[errand]
        errand.began = self._loop.time() - self._timeout / 2
        self._flight[errand] = None
        if errand.session is not self._keeper.session:
            self._go_on(errand)
        self._check()

    def start(self, errand: Errand) -> None:
        """Begin with it; it is told by `finish` how it ended."""
        if errand.finished or errand.task is not None:
            return  # its session was given up while another thread tried to send it, and it was moved
        if self._closed:
            errand.finish(self._keeper.gone())
        elif not self._post(errand):
            errand.task = self._loop.create_task(self._carry(errand))

    def abandon(self, errand: Errand) -> None:
        """Stop working on an errand that nobody waits for any more."""
        if errand.task is not None:
            errand.task.cancel()
        else:
            self._end(errand, self._keeper.late(errand.last))

    def move(self, session: Broker) -> None:
        """Have what is in flight on a session that is given up begin anew with the next."""
        moving = [errand for errand in [*self._flight, *self._outside] if errand.session is session]
        for errand in moving:
            errand.under_way.clear()
        for errand in moving:
            if errand.task is None:
                self._go_on(errand)
            elif not errand.moved:
                errand.moved = True
                errand.task.cancel()

    def close(self) -> None:
        """Fail all errands, those that come later too; their tasks are to be cancelled."""
        self._closed = True
        for errand in [*self._flight, *self._outside]:
            errand.error = self._keeper.gone()
            errand.moved = False
            if errand.task is None:
                self._end(errand, errand.error)
        if self._alarm is not None:
            self._alarm.cancel()

    # -- at once

    def _post(self, errand: Errand) -> bool:
        """Send an errand of one message by the session there is; whether that could be done."""
        session, message = self._keeper.session, errand.messages
        if session is None or not isinstance(message, Message):
            return False
        errand.session = session
        self._begin(errand)
        if session.post(message, partial(self._posted, errand, session)):
            return True
        errand.session = None
        return False

    def _posted(self, errand: Errand, session: Broker, error: PalermoError | None) -> None:
        if errand.finished or errand.task is not None or errand.session is not session:
            return  # it has gone on by other ways
        if error is None:
            self._keeper.heard = self._loop.time()
            self._stored(errand)
            self._end(errand, None)
            return
        lost = isinstance(error, BrokerUnavailable)
        if isinstance(error, BrokerUnavailable):
            errand.last = error
        self._go_on(errand)
        if lost:
            self._keeper.lose(session)

    def _go_on(self, errand: Errand) -> None:
        """By a task, in what is left of its time."""
        errand.session = None
        errand.task = self._loop.create_task(self._carry(errand))

    # -- by a task

    async def _carry(self, errand: Errand) -> None:
        error: BaseException | None = None
        try:
            await _behind(errand)
            self._begin(errand)
            await self._deliver(errand)
        except asyncio.CancelledError:
            error = errand.error or (self._keeper.gone() if self._closed else self._keeper.late(errand.last))
        except BaseException as raised:
            error = raised
        finally:
            self._end(errand, error)

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
            await _behind(errand)
            if errand.claims and errand.answers is None:
                errand.answers = await session.keys.enqueue(errand.claims)
            if isinstance(errand.messages, Event):
                await session.events.publish(errand.messages)
            elif isinstance(errand.messages, Sequence):
                if errand.messages:
                    await session.publish_many(errand.messages, errand.under_way.set)
            else:
                await session.publish(errand.messages)
        except BrokerUnavailable as error:
            errand.last = error
            errand.under_way.clear()
            if session is not None:
                self._keeper.lose(session)
            return False
        finally:
            errand.session = None
        self._keeper.heard = self._loop.time()
        self._stored(errand)
        return True

    # -- the time that they have

    def _begin(self, errand: Errand) -> None:
        if errand.began:
            return
        errand.began = self._loop.time()
        self._outside.pop(errand, None)
        self._flight[errand] = None
        if self._alarm is None:
            self._alarm = self._loop.call_at(errand.began + self._timeout / 2, self._check)

    def _end(self, errand: Errand, error: BaseException | None) -> None:
        self._flight.pop(errand, None)
        self._outside.pop(errand, None)
        errand.finish(error)

    def _check(self) -> None:
        """Fail what is overdue, and replace a session that has said nothing since an errand began half its time ago."""
        if self._alarm is not None:
            self._alarm.cancel()
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
                else:
                    errand.finish(errand.error)
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


async def _behind(errand: Errand) -> None:
    """Wait until the errand before this one is under way. Raises what that one raised."""
    if errand.after is not None:
        await errand.after.under_way.wait()
        if errand.after.error is not None:
            raise errand.after.error
