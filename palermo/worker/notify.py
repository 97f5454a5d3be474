"""What the worker tells systemd, or whoever else listens as it does: ready, still well, stopping (sd_notify(3)).

Datagrams of NAME=value lines to the socket that NOTIFY_SOCKET names; no library is needed for
that. Nothing is ever waited for: a service manager that does not read must not hold up a worker.
"""

import asyncio
import socket
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Protocol

from palermo.config import ServiceManager, service_manager
from palermo.crew import WorkerInfo
from palermo.worker.session import Link

#: Seconds between two looks at the worker, at most.
_EVERY = 5.0

#: Seconds until what the service manager would not take is tried again.
_AGAIN = 0.1


class Watched(Protocol):
    """What is told of a worker."""

    @property
    def link(self) -> Link:
        """Its way to the broker."""

    @property
    def stopping(self) -> asyncio.Event:
        """Set once it stops."""

    def report(self) -> WorkerInfo:
        """Itself, for others."""


class Notifier:
    """Tells one service manager about one worker."""

    def __init__(self, manager: ServiceManager) -> None:
        # A name that begins with @ is Linux's, outside of the file system, and begins with a zero byte in truth.
        self._address = "\0" + manager.address[1:] if manager.address.startswith("@") else manager.address
        self._every = min(_EVERY, manager.watchdog / 2) if manager.watchdog else _EVERY
        self._watchdog = bool(manager.watchdog)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._last = ""

    @classmethod
    def found(cls) -> "Notifier | None":
        """One for the manager that the environment names; None if this process was started by no such thing."""
        manager = service_manager()
        return None if manager is None else cls(manager)

    async def keep(self, worker: Watched) -> None:
        """Tell what there is to tell, until cancelled."""
        if self._watchdog:
            # A worker that begins anew in the same process is watched already.
            self._send("WATCHDOG=1")
        await _first(worker.link.available.wait(), worker.stopping.wait())
        if not worker.stopping.is_set():
            await self._insist("READY=1", self._status(worker))
        while not worker.stopping.is_set():
            self._look(worker)
            await _first(worker.stopping.wait(), timeout=self._every)
        await self._insist("STOPPING=1", self._status(worker))
        while True:
            # How long stopping may take is the worker's own affair: --shutdown-timeout after TERM, no end after QUIT.
            more = f"EXTEND_TIMEOUT_USEC={int(self._every * 3 * 1_000_000)}"
            self._send(more, self._status(worker), *self._well())
            await asyncio.sleep(self._every)

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()

    def _look(self, worker: Watched) -> None:
        lines = self._well() if worker.link.live is not None else []
        status = self._status(worker)
        if status != self._last:
            lines.append(status)
        if lines and self._send(*lines):
            self._last = status

    def _well(self) -> list[str]:
        return ["WATCHDOG=1"] if self._watchdog else []

    def _status(self, worker: Watched) -> str:
        info = worker.report()
        session = "" if worker.link.live is not None else ", no session with the broker"
        busy = f"{len(info.jobs)} of {info.slots} slots busy"
        return f"STATUS={info.state}{session}: {busy}, {info.processed} jobs done, {info.failed} of them failed"

    async def _insist(self, *lines: str) -> None:
        """Say it until it is taken: a READY that is lost would have the worker killed as one that never started."""
        while not self._send(*lines):  # noqa: ASYNC110 - a datagram socket that is full tells nobody when it is not
            await asyncio.sleep(_AGAIN)

    def _send(self, *lines: str) -> bool:
        """Whether it was taken, or never can be."""
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except BlockingIOError:
            return False
        except OSError:
            pass  # nobody listens there
        return True


async def _first(*waits: Coroutine[Any, Any, Any], timeout: float | None = None) -> None:
    """Wait for the first of these, or so many seconds."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
