"""Two watchdogs over the worker itself: does it still get jobs, and does its loop still turn?

The first asks the broker, only while a slot idles, whether anything waits in the queues it
serves. Something does at every one of several looks, and no slot gets anything: the worker is
deaf. Its session is given up for another, and if that does not help, the worker ends.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from typing import Protocol

from palermo.errors import BrokerError, BrokerUnavailable
from palermo.worker.session import Live
from palermo.worker.stacks import thread_stacks

log = logging.getLogger("palermo.worker")

#: Seconds between two looks, at least.
EVERY = 5.0

#: A look that took long is followed by a pause this many times as long, so that looking costs next to nothing.
RARELY = 200.0

#: At how many looks in a row the same queue must hold jobs that do not come.
LOOKS = 4

#: Seconds in which the broker must answer a look.
ANSWER = 30.0

#: Seconds that the loop may stand still, as counted while this process runs: not while it is stopped or asleep.
STANDSTILL = 60.0


class Watched(Protocol):
    """What is watched."""

    def idle(self) -> Live | None:
        """The session on which a slot waits for a job at this moment."""

    async def served(self, live: Live) -> Collection[str]:
        """The queues that the worker serves, without those that are paused."""

    def reopen(self, live: Live, error: Exception) -> None:
        """Give up the session, and open another."""

    def give_up(self) -> None:
        """End the worker."""


class DeafWatch:
    """Notices that the worker gets no jobs although some wait for it."""

    def __init__(self, worker: Watched) -> None:
        self._worker = worker
        self._received = 0
        #: Whether the session was reopened, and nothing good has been seen since.
        self._reopened = False
        #: Whether the latest look got no answer.
        self._unanswered = False

    def heard(self) -> None:
        """A slot has got a job."""
        self._received += 1
        self._reopened = False

    async def run(self) -> None:
        """Watch, until cancelled or the worker is given up."""
        pause = EVERY
        while True:
            received = self._received
            await asyncio.sleep(pause)
            began = time.monotonic()
            live = self._worker.idle()
            if live is None or received != self._received:
                pause = EVERY
                continue
            why = await self._deafness(live)
            pause = max(EVERY, RARELY * (time.monotonic() - began)) if not why else EVERY
            if not why or live is not self._worker.idle():
                continue
            if self._reopened:
                log.critical("worker gets no jobs, and another session did not help: ending reason=%r", why)
                self._worker.give_up()
                if self._unanswered:
                    # What still runs cannot be settled on it, and lanes that wait for it would not end.
                    self._worker.reopen(live, BrokerUnavailable(why))
                return
            self._reopened = True
            log.error("worker gets no jobs, opening another session reason=%r", why)
            self._worker.reopen(live, BrokerUnavailable(why))

    async def _deafness(self, live: Live) -> str:
        """Why this session counts as deaf; "" if it does not."""
        received = self._received
        silent: set[str] = set()
        for look in range(LOOKS):
            if look:
                await asyncio.sleep(EVERY)
            if live is not self._worker.idle() or received != self._received:
                return ""
            self._unanswered = False
            try:
                async with asyncio.timeout(ANSWER):
                    waiting = set(await live.consumer.waiting())
            except TimeoutError:
                self._unanswered = True
                return f"the broker did not say within {ANSWER:g} s whether jobs wait"
            except BrokerError:
                return ""  # lost or refused: whoever waits for a job hears of it too
            silent = waiting & silent if look else waiting
            if not silent:
                self._reopened = False
                return ""
        silent &= await self._served(live)
        if not silent or received != self._received:
            return ""
        return f"jobs wait in {', '.join(map(repr, sorted(silent)))}, and none came for {(LOOKS - 1) * EVERY:g} s"

    async def _served(self, live: Live) -> set[str]:
        try:
            async with asyncio.timeout(ANSWER):
                return set(await self._worker.served(live))
        except (BrokerError, TimeoutError):
            return set()


class LoopWatch:
    """Ends the process if the loop stands still: nothing else would, while its jobs run again elsewhere."""

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end
        self._turned = False
        self._over = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_soon(self._turn)
        threading.Thread(target=self._watch, name="palermo-loop-watch", daemon=True).start()

    def close(self) -> None:
        """Watch no more."""
        self._over.set()
        self._timer.cancel()

    def _turn(self) -> None:
        self._turned = True
        self._timer = self._loop.call_later(STANDSTILL / 4, self._turn)

    def _watch(self) -> None:
        # By this thread's own steps and not by the clock: a process that was stopped has done nothing wrong.
        step, still = STANDSTILL / 10, 0
        while not self._over.wait(step):
            still = 0 if self._turned else still + 1
            self._turned = False
            if still * step >= STANDSTILL:
                self._end()
                return


def end_at_once(code: int) -> Callable[[], None]:
    """What ends this process with the code, after it has told where its threads stand.

    A log that nobody reads may be what it stands still for, so telling is given a second and no more.
    """

    def tell() -> None:
        line = f"palermo: the worker's loop has stood still for {STANDSTILL:g} s, ending pid={os.getpid()}"
        # Not faulthandler, which would hold the GIL while it waits for a reader.
        os.write(2, f"{line}\n{thread_stacks()}\n".encode(errors="replace"))

    def end() -> None:
        telling = threading.Thread(target=tell, daemon=True)
        telling.start()
        telling.join(1.0)
        os._exit(code)

    return end
