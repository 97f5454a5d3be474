"""A TCP proxy that hands on what the broker says in pieces of its own, and can fall silent."""

import asyncio
from contextlib import suppress


class RecuttingProxy:
    """Listens on a free port of loopback: `port`, once entered."""

    def __init__(self, host: str, port: int, *, cut: int = 65_536) -> None:
        self._host, self._port, self._cut = host, port, cut
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.port = 0

    async def __aenter__(self) -> "RecuttingProxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def stall(self) -> None:
        """Hand on nothing more, in either direction, and keep the connections."""
        self._flowing.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        theirs, to_broker = await asyncio.open_connection(self._host, self._port)
        pumps = [
            asyncio.ensure_future(self._pump(reader, to_broker, 65_536)),
            asyncio.ensure_future(self._pump(theirs, writer, self._cut)),
        ]
        try:
            await asyncio.wait(pumps)
        finally:
            for pump in pumps:
                pump.cancel()
            for end in (writer, to_broker):
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: int) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                for start in range(0, len(data), cut):
                    await self._flowing.wait()
                    writer.write(data[start : start + cut])
                    # One write, one segment: Nagle is off, and the loop turns in between.
                    await asyncio.sleep(0)
                await writer.drain()
            writer.close()
