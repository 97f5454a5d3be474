"""What a thread asks the I/O thread to publish, and how it waits for the end of it."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from palermo.broker import Broker
from palermo.core.keys import Claim
from palermo.core.message import Message
from palermo.core.topics import Event
from palermo.core.unique import Answer, Outcome
from palermo.errors import BrokerUnavailable

#: Larger bodies may rightly take more than half of the time on a slow line, so silence proves nothing.
_TELLING_BYTES = 65_536


class Errand:
    """Messages to be published, and the wait for it. All but `wait` belongs to the I/O thread."""

    __slots__ = (
        "_done",
        "after",
        "answers",
        "began",
        "claims",
        "error",
        "finished",
        "future",
        "last",
        "messages",
        "moved",
        "patient",
        "session",
        "task",
        "under_way",
    )

    def __init__(
        self,
        messages: Message | Event | Sequence[Message],
        after: "Errand | None",
        future: "Future[None] | None",
        claims: Sequence[Claim] = (),
    ):
        self.messages = messages
        #: Jobs that need a key, and what came of them.
        self.claims = claims
        self.answers: Sequence[Answer] | None = None
        #: Not begun before this one is under way, and failed if it has failed by then.
        self.after = after
        #: Set when all of it has been sent on the session that it is on, or it has ended.
        self.under_way = asyncio.Event()
        #: For a waiting event loop; without one a thread waits.
        self.future = future
        #: When it began, on the loop's clock; 0 before.
        self.began = 0.0
        self.finished = False
        #: Why it failed.
        self.error: BaseException | None = None
        #: Why its latest attempt failed.
        self.last: BrokerUnavailable | None = None
        #: The session its current attempt is on.
        self.session: Broker | None = None
        #: Whether it was cancelled in order to go on with another session.
        self.moved = False
        #: Whether silence of the session proves nothing.
        self.patient = isinstance(messages, Sequence) or _size(messages) > _TELLING_BYTES
        self.task: asyncio.Task[None] | None = None
        self._done = threading.Lock()
        self._done.acquire()

    @property
    def stored(self) -> list[Message]:
        """The jobs among the claims that are enqueued, now or as soon as their turn comes."""
        there = (Outcome.STORED, Outcome.KEPT, Outcome.NEXT)
        answers = zip(self.claims, self.answers or (), strict=False)
        return [claim.message for claim, answer in answers if answer.outcome in there]

    def wait(self, timeout: float) -> bool:
        """Whether it has ended within this time. To be called once, by one thread."""
        return self._done.acquire(timeout=timeout)

    def finish(self, error: BaseException | None = None) -> None:
        """Say how it ended. The first word counts."""
        if self.finished:
            return
        self.finished = True
        self.error = error
        self.after = None
        self.under_way.set()
        if self.future is None:
            self._done.release()
        elif self.future.set_running_or_notify_cancel():
            if error is None:
                self.future.set_result(None)
            else:
                self.future.set_exception(error)


def _size(message: Message | Event) -> int:
    return len((message.message if isinstance(message, Event) else message).body)
