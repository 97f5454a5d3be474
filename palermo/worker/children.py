"""The processes that the template forks for a runner: how one is started, with patience, and what became of it.

What a process is for, and what its end means to the jobs in it, the runner knows (runner.py,
shared_runner.py).
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, Protocol

from palermo.worker.pipe import SlotPipe
from palermo.worker.pool import Registered
from palermo.worker.signals import describe_status, kill
from palermo.worker.template_link import TemplateLink

log = logging.getLogger("palermo.worker")

#: Seconds between attempts to start a process, at first and at most.
_FORK_PAUSE, _FORK_PAUSE_MAX = 0.1, 10.0

#: Seconds that a process which closed its pair gets to be reported dead before it is killed.
LINGER = 0.5

#: Seconds that the template, or a process that is to be replaced, gets to leave by itself.
LEAVE = 3.0


class SlotLost(Exception):
    """The pair with a process has ended; the text says what the process did, if that was the reason."""


class Gone(Exception):
    """There is no template to fork processes."""


class Process(Protocol):
    """The parent's view of a process that the template forked, or will."""

    #: What the template calls it.
    number: int
    pid: int | None
    pipe: SlotPipe | None
    #: How it ended, in words; None when the template that could have told is gone.
    fate: asyncio.Future[str | None] | None

    def renew(self) -> asyncio.Future[Any]:
        """It is about to be forked; what to wait for until it is ready, or SlotLost."""

    def ended(self, fate: str | None, linger: float) -> None:
        """It has ended, or could not be made."""


class Children:
    """All that one template forks."""

    def __init__(self, control: socket.socket, template: int) -> None:
        self.link = TemplateLink(control, template, self)
        #: Set once no process is to be started that cannot be started at once.
        self.draining: asyncio.Event
        #: Whether everything was killed.
        self.killed = False
        self._numbered: dict[int, Process] = {}
        self._by_pid: dict[int, Process] = {}

    @property
    def gone(self) -> asyncio.Event:
        """Set when the template has ended."""
        return self.link.gone

    async def open(self) -> Registered:
        """Wait for the template. Raises Unstartable."""
        self.draining = asyncio.Event()
        return await self.link.start()

    async def launch(self, process: Process, connect: Callable[[], SlotPipe]) -> None:
        """Have it forked and wait until it is ready, for as long as that takes. Raises Gone."""
        pause = _FORK_PAUSE
        while True:
            if self.gone.is_set() or self.killed:
                raise Gone
            try:
                await self._fork(process, connect)
                return
            except (SlotLost, OSError) as error:
                why = await self.fate(process, str(error)) if isinstance(error, SlotLost) else str(error)
            if self.gone.is_set() or self.draining.is_set():
                raise Gone
            log.error("cannot start slot slot=%d error=%r retry_in=%.1f", process.number, why, pause)
            stop = [asyncio.ensure_future(event.wait()) for event in (self.gone, self.draining)]
            await asyncio.wait(stop, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            for task in stop:
                task.cancel()
            pause = min(pause * 2, _FORK_PAUSE_MAX)

    async def _fork(self, process: Process, connect: Callable[[], SlotPipe]) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with theirs:
            ready = process.renew()
            ours.setblocking(False)
            _, process.pipe = await loop.create_unix_connection(connect, sock=ours)
            self._numbered[process.number] = process
            self.link.fork(process.number, theirs)
        await ready

    async def fate(self, process: Process, why: str) -> str:
        """What became of a process whose pair has ended, to be said after "the job's process"."""
        assert process.fate is not None
        if not why:
            await asyncio.wait([process.fate], timeout=LINGER)
        if process.fate.done():
            fate = process.fate.result()
            return fate or f"ended with the worker's template, which {self.link.ending}"
        # It lives, cut off from us: its job may do no more harm than it has.
        self.condemn(process)
        await process.fate
        return f"{why or 'closed its connection to the worker in mid-job'}, and was killed for that"

    def condemn(self, process: Process) -> None:
        """Have it killed, with its group."""
        if process.pid is not None:
            self.link.order(("kill", process.pid))

    def signal(self, process: Process, number: int) -> None:
        """Have it sent a signal."""
        if process.pid is not None:
            self.link.order(("signal", process.pid, number))

    async def end(self, process: Process) -> None:
        """Have an idle process leave, by itself or else by force; returns when it has."""
        assert process.fate is not None
        pipe, process.pipe = process.pipe, None
        if pipe is not None:
            pipe.close()
        await asyncio.wait([process.fate], timeout=LEAVE)
        if not process.fate.done():
            self.condemn(process)
            await process.fate

    def kill(self) -> None:
        """Kill them all at once, the template too."""
        self.killed = True
        self.draining.set()
        if not self.link.ending:
            for pid in (*self._by_pid, self.link.pid):
                kill(pid)

    async def close(self) -> None:
        """Have the template leave, once the processes whose pairs are closed have, or had their time for it.

        They would die with it, and may have something left to send.
        """
        leaving = [process.fate for process in self._numbered.values() if process.fate is not None]
        if leaving and not self.killed:
            await asyncio.wait(leaving, timeout=LEAVE)
        await self.link.leave(within=LEAVE, kill=self.kill)

    # What the template reports.

    def forked(self, number: int, pid: int) -> None:
        process = self._numbered[number]
        process.pid = pid
        self._by_pid[pid] = process

    def unforked(self, number: int, error: str) -> None:
        self._numbered.pop(number).ended(f"could not be forked: {error}", LINGER)

    def exited(self, pid: int, status: int) -> None:
        process = self._by_pid.pop(pid)
        if self._numbered.get(process.number) is process:
            del self._numbered[process.number]
        text = describe_status(status)
        process.ended(text if status < 0 else f"{text} in mid-job", LINGER)

    def template_ended(self) -> None:
        for process in list(self._numbered.values()):
            process.ended(None, LINGER)
