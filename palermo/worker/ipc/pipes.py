"""The two ends of the socket pair between the parent and a child: a blocking one, and one for asyncio."""

import asyncio
import pickle
import socket
import struct
from collections.abc import Callable
from typing import Any, cast

from palermo.worker.ipc.frames import HEADER, MAX_REPLY, SUCCESS, FrameBuffer, FromSlot, InvalidFrame, unpack_answer

_READ = 65_536

#: Returned by BlockingPipe.read if no frame arrives in time.
TIMED_OUT: tuple[Any, ...] = ("timed out",)

#: The kernel's format for a duration, in seconds and microseconds.
_TIMEVAL = struct.Struct("@ll")


class BlockingPipe:
    """A child's end of the socket pair, with blocking reads and writes."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        #: Sends a complete frame.
        self.write: Callable[[bytes], None] = end.sendall
        self._data = b""
        self._timeout: float | None = None

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self, within: float | None = None) -> tuple[Any, ...] | None:
        """Return the next frame from the parent, or None if the parent is gone.

        Returns TIMED_OUT if no frame starts in time. The rest of a frame that has started may take any time.
        """
        data = self._data
        if not data:
            if within != self._timeout:
                self._wait_for(within)
            try:
                data = self._socket.recv(_READ)
            except BlockingIOError:
                return TIMED_OUT
        end = HEADER + int.from_bytes(data[:HEADER], "big")
        if len(data) < HEADER or len(data) < end:
            self._wait_for(None)
            data = self._filled(data, HEADER)
            end = HEADER + int.from_bytes(data[:HEADER], "big")
            data = self._filled(data, end)
            if len(data) < end:
                return None
        self._data = data[end:]
        return pickle.loads(data[HEADER:end])  # type: ignore[no-any-return]

    def _filled(self, data: bytes, size: int) -> bytes:
        """Read until the data has this size; less if the parent is gone."""
        # Without MSG_WAITALL, a body of megabytes would arrive in many small pieces.
        while len(data) < size and (more := self._socket.recv(size - len(data), socket.MSG_WAITALL)):
            data += more
        return data

    def _wait_for(self, within: float | None) -> None:
        """Set a timeout for reads in the kernel, in seconds. Polling before each read would cost a system call
        per job.
        """
        self._timeout = within
        seconds = within or 0.0
        limit = _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1_000_000))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


class SlotPipe(asyncio.Protocol):
    """The parent's end of a slot's socket pair. The transport buffers frames that the slot hasn't read."""

    #: Sends a complete frame. Reports no error, since `on_end` is called when the socket pair is closed.
    write: Callable[[bytes], None]

    def __init__(
        self,
        slot: int,
        on_success: Callable[[int], None],
        on_answer: Callable[[FromSlot], None],
        on_end: Callable[[str], None],
    ) -> None:
        """`on_success` is called with the number of the successful slot, which is `slot` unless the child names
        another.
        """
        self._slot = slot
        self._on_success = on_success
        self._on_answer = on_answer
        self._on_end = on_end
        self._frames: FrameBuffer | None = None
        self._transport: asyncio.Transport
        self._why = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # isinstance fails for uvloop's transport
        self._transport = cast(asyncio.Transport, transport)
        self.write = self._transport.write

    def data_received(self, data: bytes) -> None:
        if data == SUCCESS and self._frames is None:
            self._on_success(self._slot)
            return
        frames = self._frames or FrameBuffer(MAX_REPLY)
        try:
            for payload in frames.feed(data):
                if payload[:1] == b"+" and payload[1:].isdigit():
                    self._on_success(int(payload[1:]))
                elif payload == b"+":
                    self._on_success(self._slot)
                else:
                    self._on_answer(unpack_answer(payload))
        except InvalidFrame as error:
            self.abort(f"sent invalid data: {error}")
            return
        self._frames = None if frames.empty else frames

    def abort(self, why: str) -> None:
        """Close the socket pair because of the slot's error, described by `why`."""
        self._why = why
        self._transport.abort()

    def close(self) -> None:
        """Close the socket pair, so that the slot exits."""
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._on_end(self._why)
