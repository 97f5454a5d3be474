"""A TCP proxy of the tests' own, between a program and its broker, that can fail in every way a network does."""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Self, TypeVar

from tests.rabbitmq_node import free_port

T = TypeVar("T")

#: SO_LINGER, on, for no time: closing sends a reset instead of a farewell.
_RESET = struct.pack("ii", 1, 0)

#: More bytes than any connection carries.
_UNLIMITED = 2**62


class TcpProxy:
    """Listens on a free port of loopback, in a thread of its own, and hands on what comes until told otherwise."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        # Not of the system's choice, which it would give to somebody else while this one does not listen; nor would a
        # client that asks for such a port again and again, and gets it for its own end, be connected to itself.
        self.port = free_port()
        #: How many connections were made.
        self.accepted = 0
        #: Seconds that every piece waits before it is handed on.
        self.delay = 0.0
        #: After how many bytes from the broker each connection ends, one after the other; later ones are not cut.
        self.limits: list[int] = []
        #: Whether those end with a reset.
        self.resets = False
        #: How many bytes the broker said on all connections.
        self.said = 0
        self._pairs: set[_Pair] = set()
        self._stalled: frozenset[str] = frozenset()
        self._listener: socket.socket | None = None
        self._ending = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        self._ask(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def url(self, url: str) -> str:
        """The same URL by way of this proxy."""
        return url.replace(f":{self._target[1]}", f":{self.port}")

    @property
    def connections(self) -> int:
        """How many are open now."""
        return len(self._pairs)

    def stall(self, *directions: str, new_too: bool = False) -> None:
        """Hand on nothing more "up" to the broker, or "down" from it, or both; the connections stay, half-open.

        What comes meanwhile is kept, as unacknowledged segments are, and goes on its way with `resume`.
        With `new_too` connections made from now on are as silent.
        """
        chosen = frozenset(directions or ("up", "down"))

        def stall() -> None:
            if new_too:
                self._stalled = chosen
            for pair in self._pairs:
                pair.stall(chosen)

        self._do(stall)

    def resume(self) -> None:
        """Hand on again whatever comes, and what has come since."""

        def resume() -> None:
            self._stalled = frozenset()
            for pair in self._pairs:
                pair.resume()

        self._do(resume)

    def hang_up(self, *, reset: bool = False) -> None:
        """End all connections, with TCP's farewell or with a reset."""
        self._do(lambda: [pair.end(reset=reset) for pair in self._pairs])

    def refuse(self) -> None:
        """Stop listening: who connects is refused."""
        self._do(self._stop)

    def listen(self) -> None:
        """Listen again, on the same port, and hand on whatever comes."""
        self.resume()
        if self._listener is None:
            self._do(self._listen)

    # In the thread.

    def _do(self, act: Callable[[], object]) -> None:
        async def acted() -> None:
            act()

        self._ask(acted())

    def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    # Not asyncio's own server: one that is closed leaves open what it accepted a moment before.
    def _listen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=100)
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept, self._listener)

    def _stop(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    async def _end(self) -> None:
        self._stop()
        self._ending = True
        for pair in self._pairs:
            pair.end(reset=True)
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.sleep(0)  # for what the transports still have to call

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # gone before it was accepted
            accepted, _ = listener.accept()
            task = self._loop.create_task(self._serve(accepted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, accepted: socket.socket) -> None:
        limit = self.limits[self.accepted] if self.accepted < len(self.limits) else _UNLIMITED
        self.accepted += 1
        reader, writer = await asyncio.open_connection(sock=accepted)
        try:
            theirs, to_broker = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        pair = _Pair(writer, to_broker)
        pair.stall(self._stalled)
        self._pairs.add(pair)
        if self._ending:
            pair.end(reset=True)
        pumps = [
            asyncio.ensure_future(self._pump(pair, "up", reader, to_broker)),
            asyncio.ensure_future(self._pump(pair, "down", theirs, writer, limit)),
        ]
        over = asyncio.ensure_future(pair.over.wait())
        try:
            # A farewell from either side ends both: AMQP knows no half-closed connection.
            await asyncio.wait({over, *pumps}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in (over, *pumps):
                waiting.cancel()
            await asyncio.wait({over, *pumps})
            pair.end(reset=self.resets and limit != _UNLIMITED)
            self._pairs.discard(pair)

    async def _pump(
        self,
        pair: "_Pair",
        direction: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limit: int = _UNLIMITED,
    ) -> None:
        flowing = pair.flowing[direction]
        with suppress(ConnectionError):
            while limit > 0 and (data := (await reader.read(65_536))[:limit]):
                limit -= len(data)
                if direction == "down":
                    self.said += len(data)
                if self.delay:
                    await asyncio.sleep(self.delay)
                await flowing.wait()
                writer.write(data)
                await writer.drain()
            await flowing.wait()


class _Pair:
    """One connection through the proxy: its two ends, and which directions flow."""

    def __init__(self, *ends: asyncio.StreamWriter) -> None:
        self._ends = ends
        self.flowing = {"up": asyncio.Event(), "down": asyncio.Event()}
        self.over = asyncio.Event()
        self.resume()

    def stall(self, directions: frozenset[str]) -> None:
        for direction in directions:
            self.flowing[direction].clear()

    def resume(self) -> None:
        for flowing in self.flowing.values():
            flowing.set()

    def end(self, *, reset: bool) -> None:
        self.over.set()
        for end in self._ends:
            if reset:
                with suppress(OSError):
                    raw: socket.socket = end.get_extra_info("socket")
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.transport.abort()
            else:
                end.close()
