"""The parent's end of the socket pair with the template: sends it orders, and reads its reports.

template.py describes the frames.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from palermo.worker.ipc.frames import FrameBuffer, InvalidFrame, pack, unpack_reply
from palermo.worker.options import WorkerFailed, WorkerMisused
from palermo.worker.registered import Registered
from palermo.worker.signals import describe_status, kill


class Listener(Protocol):
    """The receiver of the template's reports about its processes."""

    def forked(self, number: int, pid: int) -> None:
        """A process was forked."""

    def unforked(self, number: int, error: str) -> None:
        """A process could not be forked."""

    def exited(self, pid: int, status: int) -> None:
        """A process has ended."""

    def template_ended(self) -> None:
        """The template has ended: there will be no more reports."""


class TemplateConnection:
    """The parent's connection to one template, from its fork to its end."""

    def __init__(self, control: socket.socket, pid: int, listener: Listener) -> None:
        self.pid = pid
        #: How the template ended, in words, once it has.
        self.end_reason = ""
        self.gone: asyncio.Event
        self._control = control
        self._listener = listener
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
        except InvalidFrame:
            data = b""
        if not data:
            self._end()

    def _hear(self, report: Mapping[str, Any]) -> None:
        match report:
            case {"ready": _} | {"unstartable": _} if self._registered.done():
                pass  # A signal ended the wait for the modules.
            case {"ready": dict(registered)}:
                self._registered.set_result(Registered.from_plain(registered))
            case {"unstartable": text, "misused": misused}:
                self._registered.set_exception((WorkerMisused if misused else WorkerFailed)(str(text)))
            case {"forked": number, "pid": pid}:
                self._listener.forked(number, pid)
            case {"unforked": number, "error": text}:
                self._listener.unforked(number, str(text))
            case {"exited": _, "pid": pid, "status": status}:
                self._listener.exited(pid, status)
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
        self._listener.template_ended()
