"""The parent's view of the template, and functions that start and end the children that it forks.

template.py describes the frames exchanged with the template. The pool (forked_pool.py) decides what a child is used
for, and what its end means for its jobs.
"""

import asyncio
import json
import logging
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from msgspec import ValidationError, convert

from palermo.contract.tasks import wait_for_any
from palermo.worker.ipc.frames import FrameBuffer, pack
from palermo.worker.ipc.pipes import SlotPipe
from palermo.worker.options import WorkerFailed, WorkerMisused
from palermo.worker.registered import Registered
from palermo.worker.signals import KILLED, describe_status, kill

log = logging.getLogger("palermo.worker")

#: Seconds between attempts to start a process: the first and the maximum pause.
_FORK_PAUSE, _FORK_PAUSE_MAX = 0.1, 10.0

#: Seconds for the template, or a process to be replaced, to exit by itself.
LEAVE = 3.0


#: Seconds for which a socket pair stays open after its process has ended, so that its last answers are read.
LINGER = 0.5


class SlotLost(Exception):
    """The socket pair with a process was closed. The text describes the process's error, if any."""


class CannotFork(Exception):
    """No process can be started, because the template is gone or the worker is stopping."""


class Process(ABC):
    """A process forked by the template, from the fork request to its end."""

    def __init__(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        #: Its number in frames to and from the template, unique among running processes.
        self.number = number
        #: None until reported by the template.
        self.pid: int | None = None
        #: None before the fork, and after the socket pair is closed.
        self.pipe: SlotPipe | None = None
        #: Completes when the process is ready for jobs, or raises SlotLost.
        self.ready: asyncio.Future[None] = loop.create_future()
        #: How the process ended; None if the template died before reporting it.
        self.end_reason: asyncio.Future[str | None] = loop.create_future()

    @abstractmethod
    def connect(self) -> SlotPipe:
        """Return the parent's end of the socket pair, for a process that is being forked."""

    def disconnect(self) -> None:
        """Close the socket pair, so that the process exits. Its jobs get no result."""
        pipe, self.pipe = self.pipe, None
        if pipe is not None:
            pipe.close()

    def exited(self, how: str | None) -> None:
        """Called when the process has ended or couldn't be forked; `how` is its `end_reason`."""
        if not self.end_reason.done():
            self.end_reason.set_result(how)
        if self.pipe is not None:
            # A process left by a job may keep the socket pair open.
            asyncio.get_running_loop().call_later(LINGER, self.pipe.abort, "")


P = TypeVar("P", bound=Process)


class Children:
    """A template, from its fork to its end, and all children that it forks."""

    def __init__(self, control: socket.socket, template: int) -> None:
        """`control` is the parent's end of the socket pair with the template, whose pid is `template`."""
        self.template = template
        #: How the template ended, once it has.
        self.template_end = ""
        #: Set when the template has ended.
        self.gone = asyncio.Event()
        #: Set when the worker is stopping, so that failed starts are no longer retried.
        self.draining = asyncio.Event()
        #: Whether all processes were killed.
        self.killed = False
        self._control = control
        self._frames = FrameBuffer()
        self._registered: asyncio.Future[Registered]
        #: The hooks that the template is running, in order.
        self._hooks: list[asyncio.Future[float]] = []
        #: The children that are running or being forked, by number.
        self._children: dict[int, Process] = {}

    async def start(self) -> Registered:
        """Wait until the template has imported the user's modules. Raises WorkerFailed."""
        loop = asyncio.get_running_loop()
        self._registered = loop.create_future()
        self._control.setblocking(False)
        loop.add_reader(self._control, self._read)
        return await self._registered

    @property
    def pids(self) -> tuple[int, ...]:
        """The pids of the template and the processes that it forked."""
        return (self.template, *(child.pid for child in self._children.values() if child.pid is not None))

    async def hook(self, name: str, *more: Any) -> float:
        """Run the worker hooks with this name in the template, passing `more` after the WorkerContext.

        Returns the highest number of seconds that one returned, or 0, once all have ended.
        """
        if self.gone.is_set():
            return 0.0
        done: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._hooks.append(done)
        self._order(("hook", name, *more))
        return await done

    async def launch(self, new: Callable[[], P]) -> P:
        """Fork a child created by `new`, retrying after failures. Returns once it is ready.

        Raises CannotFork.
        """
        pause = _FORK_PAUSE
        while True:
            if self.gone.is_set() or self.killed:
                raise CannotFork
            child = new()
            try:
                await self._fork(child)
                return child
            except SlotLost as error:
                why = await self.ensure_end(child, str(error))
            except OSError as error:
                why = str(error)
            if self.gone.is_set() or self.draining.is_set():
                raise CannotFork
            log.error("cannot start slot slot=%d error=%r retry_in=%.1f", child.number, why, pause)
            await wait_for_any(self.gone, self.draining, timeout=pause)
            pause = min(pause * 2, _FORK_PAUSE_MAX)

    async def _fork(self, child: Process) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                ours.setblocking(False)
                await asyncio.get_running_loop().create_unix_connection(child.connect, sock=ours)
                self._children[child.number] = child
                socket.send_fds(self._control, [pack(("fork", child.number))], [theirs.fileno()])
        except BaseException:
            self._children.pop(child.number, None)
            child.disconnect()
            raise
        await child.ready

    async def ensure_end(self, child: Process, why: str) -> str:
        """Kill a child if it is still running after its socket pair was closed.

        Returns how it ended, as text to follow "the job's process".
        """
        if not why:
            await asyncio.wait([child.end_reason], timeout=LINGER)
        if not child.end_reason.done():
            # Either it is running without a connection, in which case its job must not continue, or its end is reported
            # late.
            self.kill_child(child)
            if await child.end_reason == KILLED:
                return f"{why or 'closed its connection to the worker during a job'}, and was killed"
        return child.end_reason.result() or f"ended with the worker's template, which {self.template_end}"

    async def end(self, child: Process) -> None:
        """End an idle child. It is killed if it doesn't exit within LEAVE seconds. Returns when it is gone."""
        child.disconnect()
        await asyncio.wait([child.end_reason], timeout=LEAVE)
        if not child.end_reason.done():
            _warn_stuck(child)
            self.kill_child(child)
            await child.end_reason

    def kill_child(self, child: Process) -> None:
        """Kill the child and its process group, through the template."""
        self._order(("kill", child.number))

    def signal(self, child: Process, number: int) -> None:
        """Send a signal to the child, through the template."""
        self._order(("signal", child.number, number))

    def _order(self, frame: tuple[Any, ...]) -> None:
        # The request follows the one to fork the child, so it doesn't need the pid. The template may be gone.
        with suppress(BrokenPipeError, ConnectionError):
            self._control.sendall(pack(frame))

    def kill(self) -> None:
        """Kill all processes immediately, including the template."""
        self.killed = True
        self.draining.set()
        if not self.template_end:
            for pid in reversed(self.pids):
                kill(pid)

    async def close(self) -> None:
        """Close the socket pairs of all children, and end the template after they have ended, or after LEAVE seconds.

        If the template ended first, they would die while they may still have something to send.
        """
        leaving = {child.end_reason: child for child in self._children.values()}
        for child in leaving.values():
            child.disconnect()
        if leaving and not self.killed:
            for stuck in (await asyncio.wait(leaving, timeout=LEAVE))[1]:
                _warn_stuck(leaving[stuck])
        if not self.gone.is_set():
            with suppress(OSError):
                self._control.shutdown(socket.SHUT_WR)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.gone.wait(), LEAVE)
        if not self.gone.is_set():
            log.warning("template does not end, killing it pid=%d waited=%.1f", self.template, LEAVE)
            self.kill()
            await self.gone.wait()
        self._control.close()

    # Reports from the template

    def _read(self) -> None:
        try:
            data = self._control.recv(65_536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            for payload in self._frames.feed(data):
                self._on_report(json.loads(payload))
        except (ValidationError, ValueError, RecursionError):
            data = b""
        if not data:
            self._template_ended()

    def _on_report(self, report: Mapping[str, Any]) -> None:
        match report:
            case {"ready": _} | {"unstartable": _} if self._registered.done():
                pass  # a signal ended the wait for the modules
            case {"ready": dict(registered)}:
                self._registered.set_result(convert(registered, Registered))
            case {"unstartable": text, "notes": list(notes), "misused": misused}:
                failed = (WorkerMisused if misused else WorkerFailed)(str(text))
                for note in notes:
                    failed.add_note(str(note))
                self._registered.set_exception(failed)
            case {"forked": number, "pid": pid}:
                self._children[number].pid = pid
            case {"unforked": number, "error": text}:
                self._children.pop(number).exited(f"could not be forked: {text}")
            case {"exited": number, "status": status}:
                how = describe_status(status)
                self._children.pop(number).exited(how if status < 0 else f"{how} during a job")
            case {"hooked": _, "answer": answer}:
                done = self._hooks.pop(0)
                if not done.done():
                    done.set_result(float(answer))

    def _template_ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._control)
        kill(self.template)
        _, status = os.waitpid(self.template, 0)
        self.template_end = describe_status(os.waitstatus_to_exitcode(status))
        self.gone.set()
        if not self._registered.done():
            self._registered.set_exception(WorkerFailed(f"the process that imports the modules {self.template_end}"))
        for done in self._hooks:
            if not done.done():
                done.set_result(0.0)
        for child in self._children.values():
            child.exited(None)


def _warn_stuck(child: Process) -> None:
    """Log that a child is killed because it did not exit. An atexit function of a job may hang."""
    log.warning("slot does not end by itself, killing it slot=%d pid=%s waited=%.1f", child.number, child.pid, LEAVE)
