"""Starts the processes that the template forks for a pool, and learns how they end.

The pool (forked_pool.py) knows the purpose of a process, and what its end means for the
jobs in it.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from msgspec import ValidationError, convert

from palermo.worker.ipc.frames import FrameBuffer, InvalidFrame, pack, unpack_reply
from palermo.worker.ipc.pipes import SlotPipe
from palermo.worker.options import WorkerFailed, WorkerMisused
from palermo.worker.registered import Registered
from palermo.worker.signals import KILLED, describe_status, kill
from palermo.worker.waiting import wait_for_any

log = logging.getLogger("palermo.worker")


class TemplateConnection:
    """The parent's end of the socket pair with one template, from its fork to its end: orders go out, reports come in.

    template.py describes the frames.
    """

    def __init__(self, control: socket.socket, pid: int, children: "Children") -> None:
        self.pid = pid
        #: How the template ended, in words, once it has.
        self.end_reason = ""
        self.gone: asyncio.Event
        self._control = control
        self._children = children
        self._frames = FrameBuffer()
        self._hooks: list[asyncio.Future[float]] = []
        self._registered: asyncio.Future[Registered]

    async def start(self) -> Registered:
        """Wait until the template has imported the user's modules. Raises WorkerFailed."""
        loop = asyncio.get_running_loop()
        self.gone = asyncio.Event()
        self._registered = loop.create_future()
        self._control.setblocking(False)
        loop.add_reader(self._control, self._read)
        return await self._registered

    async def hook(self, name: str, *more: Any) -> float:
        """Have the template run the worker hooks of this name, with `more` behind the WorkerContext.

        Returns the greatest number of seconds that one of them returned, once all have ended; 0 if none did.
        """
        if self.gone.is_set():
            return 0.0
        done: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._hooks.append(done)
        self.order(("hook", name, *more))
        return await done

    def fork(self, number: int, end: socket.socket) -> None:
        """Have the template fork a process with this end of a socket pair. Raises OSError."""
        socket.send_fds(self._control, [pack(("fork", number))], [end.fileno()])

    def order(self, frame: tuple[Any, ...]) -> None:
        """Send the template a frame. Does nothing if the template is gone."""
        with suppress(BrokenPipeError, ConnectionError):
            self._control.sendall(pack(frame))

    async def leave(self, *, within: float, kill: Callable[[], None]) -> None:
        """End the template, by `kill` if it does not exit within so many seconds. Returns when it is gone."""
        if not self.gone.is_set():
            with suppress(OSError):
                self._control.shutdown(socket.SHUT_WR)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.gone.wait(), within)
        if not self.gone.is_set():
            log.warning("template does not end, killing it pid=%d waited=%.1f", self.pid, within)
            kill()
            await self.gone.wait()
        self._control.close()

    def _read(self) -> None:
        try:
            data = self._control.recv(65_536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            for payload in self._frames.feed(data):
                self._hear(unpack_reply(payload))
        except (InvalidFrame, ValidationError):
            data = b""
        if not data:
            self._end()

    def _hear(self, report: Mapping[str, Any]) -> None:
        match report:
            case {"ready": _} | {"unstartable": _} if self._registered.done():
                pass  # A signal ended the wait for the modules.
            case {"ready": dict(registered)}:
                self._registered.set_result(convert(registered, Registered))
            case {"unstartable": text, "notes": list(notes), "misused": misused}:
                failed = (WorkerMisused if misused else WorkerFailed)(str(text))
                for note in notes:
                    failed.add_note(str(note))
                self._registered.set_exception(failed)
            case {"forked": number, "pid": pid}:
                self._children.forked(number, pid)
            case {"unforked": number, "error": text}:
                self._children.unforked(number, str(text))
            case {"exited": _, "pid": pid, "status": status}:
                self._children.exited(pid, status)
            case {"hooked": _, "answer": answer}:
                done = self._hooks.pop(0)
                if not done.done():
                    done.set_result(float(answer))

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._control)
        kill(self.pid)
        _, status = os.waitpid(self.pid, 0)
        self.end_reason = describe_status(os.waitstatus_to_exitcode(status))
        self.gone.set()
        if not self._registered.done():
            self._registered.set_exception(WorkerFailed(f"the process that imports the modules {self.end_reason}"))
        for done in self._hooks:
            if not done.done():
                done.set_result(0.0)
        self._children.template_ended()


#: Seconds between two attempts to start a process: the first pause and the longest.
_FORK_PAUSE, _FORK_PAUSE_MAX = 0.1, 10.0

#: A process that closed its socket pair is killed if the template does not report its death in so many seconds.
LINGER = 0.5

#: Seconds that the template, or a process that is to be replaced, gets to exit by itself.
LEAVE = 3.0


class SlotLost(Exception):
    """The socket pair with a process has closed. The text says what the process did wrong, if it did."""


class CannotFork(Exception):
    """No process can be started: the template is gone, or the worker stops."""


class Process(Protocol):
    """The parent's view of a process that the template forked or will fork."""

    #: Its number in the frames to and from the template.
    number: int
    pid: int | None
    pipe: SlotPipe | None
    #: How it ended, in words; None if the template died before it could report that.
    end_reason: asyncio.Future[str | None] | None

    def renew(self) -> asyncio.Future[Any]:
        """Reset the state for a new fork. The future completes once the process is ready, or raises SlotLost."""

    def ended(self, end_reason: str | None, linger: float) -> None:
        """The process has ended, or could not be forked."""


def _warn_stuck(process: Process) -> None:
    """Say that a process is killed because it did not exit: what a job gave to atexit may hang."""
    log.warning(
        "slot does not end by itself, killing it slot=%d pid=%s waited=%.1f", process.number, process.pid, LEAVE
    )


class Children:
    """All processes that one template forks."""

    def __init__(self, control: socket.socket, template: int) -> None:
        self.template = TemplateConnection(control, template, self)
        #: Set when the worker stops: from then on a failed start is not tried again.
        self.draining: asyncio.Event
        #: Whether all processes were killed.
        self.killed = False
        self._numbered: dict[int, Process] = {}
        self._by_pid: dict[int, Process] = {}

    @property
    def gone(self) -> asyncio.Event:
        """Set when the template has ended."""
        return self.template.gone

    async def open(self) -> Registered:
        """Wait until the template has imported the user's modules. Raises WorkerFailed."""
        self.draining = asyncio.Event()
        return await self.template.start()

    async def launch(self, process: Process, connect: Callable[[], SlotPipe]) -> None:
        """Have the template fork the process, again after a failure, and wait until it is ready. Raises CannotFork."""
        pause = _FORK_PAUSE
        while True:
            if self.gone.is_set() or self.killed:
                raise CannotFork
            try:
                await self._fork(process, connect)
                return
            except (SlotLost, OSError) as error:
                why = await self.describe_end(process, str(error)) if isinstance(error, SlotLost) else str(error)
            if self.gone.is_set() or self.draining.is_set():
                raise CannotFork
            log.error("cannot start slot slot=%d error=%r retry_in=%.1f", process.number, why, pause)
            await wait_for_any(self.gone, self.draining, timeout=pause)
            pause = min(pause * 2, _FORK_PAUSE_MAX)

    async def _fork(self, process: Process, connect: Callable[[], SlotPipe]) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ready = process.renew()
        try:
            with theirs:
                ours.setblocking(False)
                _, process.pipe = await loop.create_unix_connection(connect, sock=ours)
                self._numbered[process.number] = process
                self.template.fork(process.number, theirs)
        except BaseException:
            ready.cancel()  # else the end of the socket pair is an error of it that nobody reads
            raise
        await ready

    async def describe_end(self, process: Process, why: str) -> str:
        """How a process ended whose socket pair has closed, as words to follow "the job's process"."""
        assert process.end_reason is not None
        if not why:
            await asyncio.wait([process.end_reason], timeout=LINGER)
        if not process.end_reason.done():
            # It lives, cut off from the parent, and its job must not go on; or the template is slow to report its end.
            self.kill_process(process)
            if await process.end_reason == KILLED:
                return f"{why or 'closed its connection to the worker in mid-job'}, and was killed for that"
        end_reason = process.end_reason.result()
        return end_reason or f"ended with the worker's template, which {self.template.end_reason}"

    def kill_process(self, process: Process) -> None:
        """Have the template kill the process and its process group."""
        if process.pid is not None:
            self.template.order(("kill", process.pid))

    def signal(self, process: Process, number: int) -> None:
        """Have the template send the process a signal."""
        if process.pid is not None:
            self.template.order(("signal", process.pid, number))

    async def end(self, process: Process) -> None:
        """End an idle process: it gets LEAVE seconds to exit by itself, and is then killed. Returns when it is gone."""
        assert process.end_reason is not None
        pipe, process.pipe = process.pipe, None
        if pipe is not None:
            pipe.close()
        await asyncio.wait([process.end_reason], timeout=LEAVE)
        if not process.end_reason.done():
            _warn_stuck(process)
            self.kill_process(process)
            await process.end_reason

    def kill(self) -> None:
        """Kill all processes at once, the template too."""
        self.killed = True
        self.draining.set()
        if not self.template.end_reason:
            for pid in (*self._by_pid, self.template.pid):
                kill(pid)

    async def close(self) -> None:
        """End the template, after its processes have ended or had LEAVE seconds to.

        They would die with the template, and may still have something to send.
        """
        leaving = {each.end_reason: each for each in self._numbered.values() if each.end_reason is not None}
        if leaving and not self.killed:
            for stuck in (await asyncio.wait(leaving, timeout=LEAVE))[1]:
                _warn_stuck(leaving[stuck])
        await self.template.leave(within=LEAVE, kill=self.kill)

    # Reports from the template.

    @property
    def pids(self) -> tuple[int, ...]:
        """The template and the processes that it forked."""
        return (self.template.pid, *self._by_pid)

    def forked(self, number: int, pid: int) -> None:
        process = self._numbered[number]
        process.pid = pid
        self._by_pid[pid] = process

    def unforked(self, number: int, error: str) -> None:
        self._numbered.pop(number).ended(f"could not be forked: {error}", LINGER)

    def exited(self, pid: int, status: int) -> None:
        process = self._by_pid.pop(pid)
        if process.pid != pid:
            # The slot saw its process go, and asked for the next one before the template reported the end.
            return
        if self._numbered.get(process.number) is process:
            del self._numbered[process.number]
        text = describe_status(status)
        process.ended(text if status < 0 else f"{text} in mid-job", LINGER)

    def template_ended(self) -> None:
        for process in list(self._numbered.values()):
            process.ended(None, LINGER)
