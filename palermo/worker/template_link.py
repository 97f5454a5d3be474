"""The parent's end of the pair with the template: orders to it, and what it reports.

See template.py for the frames.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from palermo.entries import Entry
from palermo.events import Subscription
from palermo.worker.pipe import Frames, Garbage, pack, unpack_reply
from palermo.worker.pool import Registered, Unstartable
from palermo.worker.signals import describe_status, kill


class Listener(Protocol):
    """Who wants to know what becomes of slots."""

    def forked(self, number: int, pid: int) -> None:
        """The slot lives."""

    def unforked(self, number: int, error: str) -> None:
        """It could not be made."""

    def exited(self, pid: int, status: int) -> None:
        """A slot's process has ended."""

    def template_ended(self) -> None:
        """No slot will ever be reported again."""


class TemplateLink:
    """One template, from its fork to its end."""

    def __init__(self, control: socket.socket, pid: int, listener: Listener) -> None:
        self.pid = pid
        #: How the template ended, in words, once it has.
        self.ending = ""
        self.gone: asyncio.Event
        self._control = control
        self._listener = listener
        self._frames = Frames()
        self._hooks: list[asyncio.Future[None]] = []
        self._registered: asyncio.Future[Registered]

    async def start(self) -> Registered:
        """Wait until it has imported the user's modules. Raises Unstartable."""
        loop = asyncio.get_running_loop()
        self.gone = asyncio.Event()
        self._registered = loop.create_future()
        self._control.setblocking(False)
        loop.add_reader(self._control, self._read)
        return await self._registered

    async def hook(self, name: str) -> None:
        """Have it run the worker hooks of this name."""
        if self.gone.is_set():
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hooks.append(done)
        self.order(("hook", name))
        await done

    def fork(self, number: int, end: socket.socket) -> None:
        """Have it fork a slot with this end of a pair. Raises OSError."""
        socket.send_fds(self._control, [pack(("fork", number))], [end.fileno()])

    def order(self, frame: tuple[Any, ...]) -> None:
        """Tell it something; one that is gone hears nothing."""
        with suppress(BrokenPipeError, ConnectionError):
            self._control.sendall(pack(frame))

    async def leave(self, *, within: float, kill: Callable[[], None]) -> None:
        """Have it end by itself, or else by `kill`; returns when it has."""
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
        except Garbage:
            data = b""
        if not data:
            self._end()

    def _hear(self, report: Mapping[str, Any]) -> None:
        match report:
            case {"ready": True, "jobs": jobs, "queues": queues, "hooks": hooks, "timeouts": timeouts}:
                self._registered.set_result(
                    Registered(
                        jobs=_texts(jobs),
                        queues=_texts(queues),
                        hooks=frozenset(_texts(hooks)),
                        timeouts=timeouts,
                        locks=report["locks"],
                        prioritized=frozenset(_texts(report["prioritized"])),
                        batches={job: (most, wait) for job, (most, wait) in report["batches"].items()},
                        recurring=tuple(map(Entry.from_plain, report["recurring"])),
                        modules=_texts(report["modules"]),
                        subscriptions=tuple(
                            (Subscription.from_plain(plain), bool(from_start))
                            for plain, from_start in report["subscriptions"]
                        ),
                    )
                )
            case {"unstartable": text}:
                self._registered.set_exception(Unstartable(str(text)))
            case {"forked": number, "pid": pid}:
                self._listener.forked(number, pid)
            case {"unforked": number, "error": text}:
                self._listener.unforked(number, str(text))
            case {"exited": _, "pid": pid, "status": status}:
                self._listener.exited(pid, status)
            case {"hooked": _}:
                done = self._hooks.pop(0)
                if not done.done():
                    done.set_result(None)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._control)
        kill(self.pid)
        _, status = os.waitpid(self.pid, 0)
        self.ending = describe_status(os.waitstatus_to_exitcode(status))
        self.gone.set()
        if not self._registered.done():
            self._registered.set_exception(Unstartable(f"the process that imports the modules {self.ending}"))
        for done in self._hooks:
            if not done.done():
                done.set_result(None)
        self._listener.template_ended()


def _texts(values: Sequence[Any]) -> tuple[str, ...]:
    return tuple(str(value) for value in values)
