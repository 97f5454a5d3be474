"""The trouble that a session has with a broker that answers, and what to do about it.

The broker stores nothing, makes nothing, or does not let the session's user ask workers.

Each broker knows its own trouble. Commands, pages and probes say what it says, and add nothing of their own.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from palermo.errors import BrokerBlocked

T = TypeVar("T")

#: Seconds that a call may go on after the broker has begun to hold back publishers, and seconds between two checks.
#: Reading takes less; what has to be stored first waits as long as the trouble lasts.
_GRACE, _CHECK_EVERY = 2.5, 0.1


class Trouble(Struct, frozen=True):
    """Why a broker stores nothing for now, makes nothing, or does not let this user ask workers."""

    #: A clause that names the broker, without a full stop.
    cause: str
    #: What an operator can do, in whole sentences.
    advice: str
    #: Whether it keeps workers from taking jobs too, and not only from storing anything.
    stops_workers: bool = False
    #: Whether what has to be stored waits until the trouble is over. If not, it fails at once.
    waits: bool = False

    @property
    def text(self) -> str:
        return f"{self.cause}. {self.advice}".rstrip()


class Troubled(Protocol):
    """What `unless_blocked` needs of a broker's session."""

    @property
    def trouble(self) -> Trouble | None:
        """The trouble that the broker has told this session of."""


async def unless_blocked(broker: Troubled, work: Coroutine[Any, Any, T], *, grace: float = _GRACE) -> T:
    """Await the work. Raises BrokerBlocked if it has to wait for the broker's trouble, after `grace` seconds of it.

    The work may then have been done or not.
    """
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    began: float | None = None
    try:
        while not (await asyncio.wait({task}, timeout=_CHECK_EVERY))[0]:
            trouble = broker.trouble
            if trouble is None or not trouble.waits:
                began = None
            elif began is None:
                began = loop.time()
            elif loop.time() - began > grace:
                # Nobody waits for its end: closing a channel of a connection that is held back has no answer either.
                task.add_done_callback(lambda done: done.cancelled() or done.exception())
                task.cancel()
                raise BrokerBlocked(trouble.text)
        return task.result()
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        raise
