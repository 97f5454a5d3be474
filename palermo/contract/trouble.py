"""Problems of a broker that still answers: it stores nothing, creates nothing, or doesn't let the user ask workers.

Each broker describes its own problems, in text that commands, pages and probes show unchanged.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from palermo.errors import BrokerBlocked

T = TypeVar("T")

#: Seconds that a call may continue after the broker has begun to block publishers, and seconds between two checks.
#: Reading takes less time; a write waits as long as the problem lasts.
_GRACE, _CHECK_EVERY = 2.5, 0.1


class Trouble(Struct, frozen=True):
    """The reason why a broker stores nothing for now, creates nothing, or does not let this user ask workers."""

    #: A clause that names the broker, without a full stop.
    cause: str
    #: The operator's options, in whole sentences.
    advice: str
    #: Whether it also keeps workers from taking jobs.
    stops_workers: bool = False
    #: Whether writes wait until the problem is over, rather than fail immediately.
    waits: bool = False

    @property
    def text(self) -> str:
        return f"{self.cause}. {self.advice}".rstrip()


class Troubled(Protocol):
    """The part of a broker session that `unless_blocked` needs."""

    @property
    def trouble(self) -> Trouble | None:
        """The problem that the broker has reported to this session."""


async def unless_blocked(broker: Troubled, work: Coroutine[Any, Any, T], *, grace: float = _GRACE) -> T:
    """Await the work. Raises BrokerBlocked if the broker's problem still blocks it after `grace` seconds.

    It is then unknown whether the work was done.
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
                # Not awaited, since closing a channel of a blocked connection gets no answer either.
                task.add_done_callback(lambda done: done.cancelled() or done.exception())
                task.cancel()
                raise BrokerBlocked(trouble.text)
        return task.result()
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        raise
