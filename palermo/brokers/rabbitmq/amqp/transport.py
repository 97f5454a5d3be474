"""Opens an AMQP connection, and runs pika's protocol machine on an asyncio transport.

pika's own asyncio adapter resolves names in threads, and has its own write path. Here asyncio or uvloop provides the
socket, TLS and names. Everything sent in one turn of the loop is written together. A thread that waits for the confirm
of a single message may write it itself (SocketLock).

The frames that every job needs bypass pika's objects (frames.py): deliveries requested with `deliver_to` and their
acks, published messages and their confirms, and the requests of a worker on several queues. pika handles all other
frames, in wire order.

The names with a leading underscore are pika's: the six hooks that an adapter must implement, the three entry points
that it calls, and the attributes in which a channel stores its callbacks. They are the same from 1.3.2 to 1.4.
pyproject.toml pins that range, and tests/rabbitmq/test_frames.py covers every path through them.
"""

import asyncio
import logging
import re
import ssl
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import pika
from pika import connection, exceptions, frame, spec
from pika.data import encode_table

from palermo.brokers.rabbitmq.amqp import frames, tls
from palermo.brokers.rabbitmq.amqp.frames import (
    FRAME_HEADER,
    Counted,
    Delivered,
    ack,
    frame_at,
    read_counted,
    read_delivery,
    read_got,
    short,
)
from palermo.brokers.rabbitmq.amqp.messages import Properties
from palermo.brokers.rabbitmq.seconds import LAST_WORDS
from palermo.contract.socket_lock import SocketLock
from palermo.errors import BrokerRefused

log = logging.getLogger("palermo.rabbitmq")

#: Called with a delivery and the buffer that holds its properties.
Taker = Callable[[Delivered, bytes], None]

#: Called with each queue's answer to `count`.
Counter = Callable[[Counted, bytes], None]

#: Reads what starts with the method frame at this position, on this channel. Returns INCOMPLETE if more bytes are
#: needed, and None if pika must read it.
_Read = Callable[[bytes, int, int], Delivered | Counted | int | None]

#: Maximum number of frames held back while acks wait for the end of the turn, so that RabbitMQ isn't idle.
_TOGETHER = 16

#: A content header frame up to its property flags: type, channel, size, class and weight (two bytes each), body size.
_HEADER_FRAME = struct.Struct(">BHI4sQ")


class AsyncioConnection(connection.Connection, asyncio.Protocol):  # type: ignore[misc]
    """One AMQP connection on the running loop, opened by `connect`."""

    #: pika's attribute: bytes of incomplete frames.
    _frame_buffer: bytes

    def __init__(
        self,
        parameters: pika.ConnectionParameters,
        loop: asyncio.AbstractEventLoop,
        *,
        on_open: Callable[[Any], None],
        on_error: Callable[[Any, Exception], None],
        on_close: Callable[[Any, Exception], None],
    ) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._output: list[bytes] = []
        #: Whether the acks of one turn of the loop are written together, for a worker with many slots.
        self.acks_together = False
        self._at_end = False
        #: Why TLS ended the connection, and whether the server accepts only TLS.
        self.tls_error: ssl.SSLError | None = None
        self.wants_tls = False
        #: By channel number: pika's channel, and the reader and the receiver of frames that bypass pika.
        self._takers: dict[int, tuple[Any, _Read, Callable[[Any, bytes], None]]] = {}
        #: By channel number: the callback for publisher confirms.
        self._listening: dict[int, frames.Confirmed] = {}
        #: Cleared while the socket's buffer is full. Publishers of many messages wait for it.
        self.writable = asyncio.Event()
        self.writable.set()
        #: Held by the thread that writes.
        self.socket_lock = SocketLock()
        super().__init__(parameters, on_open, on_error, on_close, internal_connection_workflow=False)

    # -- pika's adapter interface ----------------------------------------------------------------

    def _adapter_call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay, callback)

    def _adapter_remove_timeout(self, timeout_id: asyncio.TimerHandle) -> None:
        timeout_id.cancel()

    def _adapter_add_callback_threadsafe(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(callback)

    def _adapter_connect_stream(self) -> None:
        raise AssertionError("the transport is connected by connect(), never by pika's workflow")

    def _adapter_disconnect_stream(self) -> None:
        self.flush()
        self.socket_lock.drop()
        if self._transport is None:
            return
        # close() sends the buffer, including CloseOk and acks, but may wait forever for a dead peer. abort() discards
        # it.
        if isinstance(self._error, exceptions.ConnectionClosed):
            if self._transport.get_write_buffer_size():
                self._loop.call_later(LAST_WORDS, self.abort)
            self._transport.close()
        else:
            self._transport.abort()

    def _adapter_emit_data(self, data: bytes) -> None:
        self.send([data])

    def send(self, pieces: list[bytes]) -> None:
        """Send whole frames, after everything that pika has sent so far."""
        if not self._output:
            self._loop.call_soon(self.flush)
        self._output += pieces

    def flush(self) -> None:
        """Write everything sent in this turn of the loop now, so that the answer comes a turn earlier."""
        if not self._output or self._transport is None:
            return
        if not self.socket_lock.take():
            self._transport.abort()
            return
        try:
            data = b"".join(self._output)
            self._output.clear()
            self._transport.write(data)
        finally:
            self.socket_lock.release()

    @property
    def room(self) -> int:
        """Maximum bytes of a message's properties in one frame."""
        frame_max: int = self.params.frame_max
        return frame_max - frames.CONTENT_OVERHEAD

    @property
    def idle(self) -> bool:
        """Whether the write buffer is empty. Call it with the socket lock held."""
        transport = self._transport
        return transport is not None and not self._output and not transport.get_write_buffer_size()

    def send_now(self, data: bytes) -> None:
        """Write whole frames while the connection is idle, from any thread that holds the socket lock."""
        sent = self.socket_lock.write(data)
        if sent < len(data):
            self._output.insert(0, data[sent:])
            with suppress(RuntimeError):  # the loop has ended; waiting callers get an error anyway
                self._loop.call_soon_threadsafe(self.flush)

    def _read_frame(self) -> tuple[int, Any]:
        """pika's reader, except that the frame with the headers is read by our own decoder."""
        data = self._frame_buffer
        if len(data) < _HEADER_FRAME.size or data[0] != spec.FRAME_HEADER:
            result: tuple[int, Any] = super()._read_frame()
            return result
        _, channel, size, _, body_size = _HEADER_FRAME.unpack_from(data)
        end = spec.FRAME_HEADER_SIZE + size + spec.FRAME_END_SIZE
        if end > len(data):
            return 0, None
        if data[end - 1] != spec.FRAME_END:
            raise exceptions.InvalidFrameError("the end marker of a header frame is missing at the declared size")
        return end, frame.Header(channel, body_size, Properties().decode(data[: end - 1], _HEADER_FRAME.size))

    # -- frames that bypass pika -----------------------------------------------------------------

    def deliver_to(self, channel: Any, tag: str, taker: Taker) -> None:
        """Pass the deliveries for this consumer on pika's channel to `taker`, except those that pika must read.

        Call `deliver_no_more` before cancelling the consumer.
        """
        self._takers[channel.channel_number] = (channel, partial(read_delivery, consumer=short(tag)), taker)

    def answers_to(self, channel: Any, taker: Taker) -> None:
        """Pass the answers to `get` on pika's channel to `taker`, except those that pika must read."""
        self._takers[channel.channel_number] = (channel, read_got, taker)

    def counts_to(self, channel: Any, taker: Counter) -> None:
        """Pass the answers to `count` on pika's channel to `taker`."""
        self._takers[channel.channel_number] = (channel, read_counted, taker)

    def deliver_no_more(self, channel: Any) -> None:
        """Let pika read all frames of this channel again. It rejects deliveries for a cancelled consumer."""
        if channel.channel_number in self._takers and self._takers[channel.channel_number][0] is channel:
            del self._takers[channel.channel_number]

    def acks_to(self, channel: Any, listener: frames.Confirmed) -> None:
        """Call `listener` with the publisher confirms on pika's channel, except those that pika must read."""
        self._listening[channel.channel_number] = listener

    def acks_no_more(self, channel: Any) -> None:
        """Let pika read the confirms of this closed channel again."""
        self._listening.pop(channel.channel_number, None)

    def ack(self, channel: Any, tag: int) -> None:
        """Acknowledge a delivery on pika's channel, after everything sent before.

        The ack is written immediately, unless `acks_together` is set.

        Raises the errors of pika's basic_ack.
        """
        if not channel.is_open:
            channel.basic_ack(tag)
            self.flush()
            return
        frame = ack(channel.channel_number, tag)
        if not self.acks_together or len(self._output) >= _TOGETHER:
            self._write(frame)
            return
        if not self._output:
            self._loop.call_soon(self.flush)
        self._output.append(frame)

    def get(self, channel: Any, queue: str, got: Callable[..., None], *, acked: int = 0) -> None:
        """Request a queue's first message now.

        If `acked` is given, acknowledges that delivery first, in the same write. Only one call at a time is allowed on
        a channel. The answer is passed to the callback of `answers_to`. If pika must read the answer, it is passed to
        `got`, or to pika's callbacks for GetEmpty. Raises the errors of pika's methods.
        """
        if not channel.is_open:
            if acked:
                channel.basic_ack(acked)
            channel.basic_get(queue, got)
            self.flush()
            return
        # pika doesn't know that the last call was answered.
        channel._on_getok_callback = got
        number = channel.channel_number
        asked = frames.get(number, queue)
        self._write(ack(number, acked) + asked if acked else asked)

    def get_each(self, channel: Any, queues: Iterable[str], got: Callable[..., None]) -> None:
        """Request the next message of each of these queues, like `get`. The answers come in this order."""
        if not channel.is_open:
            raise exceptions.ChannelWrongStateError

        def read_by_pika(*answer: Any) -> None:
            channel._on_getok_callback = read_by_pika
            got(*answer)

        channel._on_getok_callback = read_by_pika
        self._write(b"".join(frames.get(channel.channel_number, queue) for queue in queues))

    def count(self, channel: Any, queues: Iterable[str]) -> None:
        """Request the number of waiting messages of each of these queues. The answers come in this order."""
        self._write(b"".join(frames.count(channel.channel_number, queue) for queue in queues))

    def declare_and_bind(
        self, channel: Any, queues: Mapping[str, str], exchange: str, arguments: Mapping[str, Any]
    ) -> None:
        """Declare durable queues, given with their routing keys, and bind each, unless the exchange is "".

        The answers have the same form as those to `count`.
        """
        number, table = channel.channel_number, list[bytes]()
        encode_table(table, dict(arguments))
        asked = [
            frames.declare(number, queue, b"".join(table))
            + (frames.bind(number, queue, exchange, key) if exchange else b"")
            for queue, key in queues.items()
        ]
        self._write(b"".join(asked))

    def listen(self, channel: Any, queues: Mapping[str, str], callback: Callable[..., None]) -> None:
        """Subscribe to queues, given by consumer tag, without waiting. pika passes the deliveries to `callback`.

        RabbitMQ doesn't answer, but a missing queue closes the channel.
        """
        channel._consumers.update(dict.fromkeys(queues, callback))
        self._write(b"".join(frames.consume(channel.channel_number, queue, tag) for tag, queue in queues.items()))

    def listen_no_more(self, channel: Any, tags: Collection[str]) -> None:
        """End such subscriptions immediately. pika rejects late deliveries until `forget_listening` is called."""
        for tag in tags:
            channel._consumers.pop(tag, None)
        channel._cancelled.update(tags)
        self._write(b"".join(frames.cancel(channel.channel_number, tag) for tag in tags))

    def forget_listening(self, channel: Any, tags: Collection[str]) -> None:
        """Free the tags for reuse. Call it when no more deliveries for them can arrive."""
        channel._cancelled.difference_update(tags)

    def _write(self, data: bytes) -> None:
        """Write whole frames immediately, after everything sent before."""
        if self._output:
            self._output.append(data)
            self.flush()
        elif self._transport is not None:
            self._transport.write(data)

    def _cut(self, data: bytes) -> None:
        """Dispatch the received frames in wire order. An incomplete one is kept in pika's buffer."""
        if self._frame_buffer:
            data, self._frame_buffer = self._frame_buffer + data, b""
        start, size = 0, len(data)
        while start < size:
            framed = frame_at(data, start)
            if framed is None:
                break
            channel, end = framed
            if channel in self._takers:
                raw, read, taker = self._takers[channel]
                found = read(data, start, channel) if raw.is_open else None
                if isinstance(found, tuple):
                    # pika would otherwise consider the connection silent
                    self.bytes_received += found.end - start
                    start = found.end
                    taker(found, data)
                    continue
                if found is not None:
                    break
            if end > size:
                break
            self._on_data_available(data[start:end])
            start = end
        if self._transport is None or start == size:
            return
        if size - start >= FRAME_HEADER and frame_at(data, start) is None:
            self._on_data_available(data[start:])  # not a frame: pika raises the error
        else:
            self._frame_buffer = data[start:]

    # -- asyncio.Protocol ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self.socket_lock.fill(transport)
        self._on_stream_connected()

    def data_received(self, data: bytes) -> None:
        if self._listening and not self._frame_buffer:
            read = frames.acks(data, self._listening)
            if read:
                self.bytes_received += read
                data = data[read:]
        if self._takers:
            self._cut(data)
        elif data:
            self._on_data_available(data)

    def eof_received(self) -> bool:
        self._at_end = True
        return False

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.socket_lock.drop()
        self._takers.clear()
        self._listening.clear()
        self._output.clear()
        self.writable.set()
        lost: Exception | None = None
        if isinstance(exc, ssl.SSLError):
            self.tls_error = exc
        elif not self.is_open:
            self.wants_tls = tls.is_alert(self._frame_buffer)
        if exc is not None:
            lost = exceptions.StreamLostError(f"connection lost: {exc!r}")
        elif self._error is None or (self._at_end and not isinstance(self._error, exceptions.ConnectionClosed)):
            lost = exceptions.StreamLostError("the broker closed the connection")
        self._on_stream_terminated(lost)

    def abort(self) -> None:
        """Drop the connection immediately, without AMQP's close handshake."""
        transport, self._transport = self._transport, None
        if transport is not None:
            # A transport whose opening was cancelled is closed, raises at each write, and never reports its loss.
            self.socket_lock.drop()
            transport.abort()


async def connect(
    parameters: pika.ConnectionParameters, *, timeout: float, on_close: Callable[[Exception], None]
) -> AsyncioConnection:
    """Open a connection to the one host in `parameters`: name lookup, socket, TLS and handshake.

    `on_close` is called once, with the reason, when the open connection ends. Raises TimeoutError, OSError or a pika
    exception, and BrokerRefused for an untested version of pika, or if the host accepts only TLS and `parameters` have
    none.
    """
    if not is_tested(pika.__version__):
        raise BrokerRefused(
            f"pika {pika.__version__} is installed, but Palermo supports only 1.3.2 to 1.4. Run"
            " `pip install 'pika>=1.3.2,<1.5'`."
        )
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[AsyncioConnection] = loop.create_future()
    # The connection's own error may be set before or after the caller's.
    opened.add_done_callback(lambda done: done.cancelled() or done.exception())

    def on_error(_: object, error: Exception) -> None:
        if opened.done():
            return
        # With TLS 1.3 the server verifies our certificate after the connection already counts as open.
        if made.tls_error is not None:
            opened.set_exception(made.tls_error)
        elif made.wants_tls:
            opened.set_exception(tls.only_tls(where))
        else:
            opened.set_exception(error if isinstance(error, Exception) else OSError(str(error)))

    where = f"{parameters.host}:{parameters.port}"

    def on_open(connected: AsyncioConnection) -> None:
        log.debug("connection opened to=%s heartbeat=%s", where, connected.params.heartbeat)
        if not opened.done():
            opened.set_result(connected)

    def on_end(_: object, error: Exception) -> None:
        log.debug("connection closed to=%s reason=%r", where, str(error))
        on_close(error)

    made = AsyncioConnection(parameters, loop, on_open=on_open, on_error=on_error, on_close=on_end)
    context: ssl.SSLContext | None = None
    server_hostname: str | None = None
    if parameters.ssl_options is not None:
        context = parameters.ssl_options.context
        server_hostname = parameters.ssl_options.server_hostname or parameters.host
    try:
        async with asyncio.timeout(timeout):
            await loop.create_connection(
                lambda: made, parameters.host, parameters.port, ssl=context, server_hostname=server_hostname
            )
            return await opened
    except RuntimeError as error:
        # asyncio looks up host names in threads, which can't be started while the program is exiting.
        made.abort()
        opened.cancel()
        raise OSError(
            f"cannot look up the host {parameters.host!r} while the program is exiting ({error}). Enqueue earlier, or"
            " install palermo[fast], which needs no thread for the lookup"
        ) from error
    except BaseException:
        made.abort()
        opened.cancel()
        raise


def is_tested(version: str) -> bool:
    """Whether Palermo was tested with this version of pika, 1.3.2 to the last 1.4 (see pyproject.toml)."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    return found is not None and (1, 3, 2) <= tuple(map(int, found.groups())) < (1, 5, 0)
