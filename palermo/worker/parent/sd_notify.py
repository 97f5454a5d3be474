"""Reports to a service manager such as systemd that the worker is ready, alive or stopping (sd_notify(3)).

Sends datagrams of NAME=value lines to the socket in NOTIFY_SOCKET. Never blocks, so a service manager that doesn't read
them can't delay a worker.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from palermo.contract.tasks import wait_for_any
from palermo.contract.worker_info import WorkerInfo
from palermo.core.text import count
from palermo.settings.environment import ServiceManager, service_manager

#: Maximum seconds between checks of the worker's state.
_EVERY = 5.0

#: Seconds until a datagram that didn't fit into the socket is sent again.
_SEND_AGAIN_AFTER = 0.1


class Notifier:
    """Reports a worker's state to a service manager."""

    def __init__(self, manager: ServiceManager) -> None:
        # A name that starts with @ is an abstract Linux socket, outside of the file system; its first byte is zero.
        self._address = "\0" + manager.address[1:] if manager.address.startswith("@") else manager.address
        self._every = min(_EVERY, manager.watchdog / 2) if manager.watchdog else _EVERY
        self._watchdog = bool(manager.watchdog)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    @classmethod
    def found(cls) -> "Notifier | None":
        """Return a notifier for the service manager in the environment, or None."""
        manager = service_manager()
        return None if manager is None else cls(manager)

    @asynccontextmanager
    async def informed(
        self, report: Callable[[], WorkerInfo], *, available: asyncio.Event, stopping: asyncio.Event
    ) -> AsyncIterator[None]:
        """Report to the service manager within the context. See `run`."""
        notifying = asyncio.ensure_future(self.run(report, available=available, stopping=stopping))
        try:
            yield
        finally:
            notifying.cancel()
            await asyncio.wait({notifying})
            self._socket.close()

    async def run(self, report: Callable[[], WorkerInfo], *, available: asyncio.Event, stopping: asyncio.Event) -> None:
        """Report the worker's state and its changes, until cancelled.

        `available` is set while the worker has a broker session, `stopping` once it is stopping.
        """
        if self._watchdog:
            # After a restart in the same process, the service manager's watchdog is already running.
            self._send("WATCHDOG=1")
        await wait_for_any(available, stopping)
        sent = set[str]()
        # A burst worker may already be stopping.
        ready = ["READY=1"] if available.is_set() or not stopping.is_set() else []
        while True:
            facts, signs = [*ready, _status(report(), available)], list[str]()
            if self._watchdog and (available.is_set() or stopping.is_set()):
                signs.append("WATCHDOG=1")
            if stopping.is_set():
                facts.append("STOPPING=1")
                # The worker decides how long stopping may take: --shutdown-timeout after TERM, no limit after QUIT.
                signs.append(f"EXTEND_TIMEOUT_USEC={int(self._every * 3 * 1_000_000)}")
            lines = [*(fact for fact in facts if fact not in sent), *signs]
            if lines and not self._send(*lines):
                # If READY were lost, systemd would kill the worker because it "never started".
                await asyncio.sleep(_SEND_AGAIN_AFTER)
                continue
            sent = {*facts}
            await (asyncio.sleep(self._every) if stopping.is_set() else wait_for_any(stopping, timeout=self._every))

    def _send(self, *lines: str) -> bool:
        """Send a datagram. Returns False if the socket is full, so that the caller can try again."""
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except BlockingIOError:
            return False
        except OSError:
            pass  # no process is listening
        return True


def _status(info: WorkerInfo, available: asyncio.Event) -> str:
    session = "" if available.is_set() else ", no session with the broker"
    busy = f"{len(info.jobs)} of {count(info.slots, 'slot')} busy"
    return f"STATUS={info.state}{session}: {busy}, {count(info.processed, 'job')} done, {info.failed} of them failed"
