"""The cost of a worker's Python for each plain job, without system calls: `python -m benchmarks.hot`.

Parent and slot of a process pool, each with its real objects, both in this process. The parent is a whole worker on a
real broker, whose deliveries are made here and whose writes go nowhere. The slot reads its frames from memory. All is
hot, so these are the least microseconds that a job can take: in a worker, where caches are cold and the kernel has its
share, it is about twice as much. The figures are processor time, the least of many short runs, so that other work on
the machine does not show. Two runs differ by some 3 %.
"""

import asyncio
import json
import os
import socket
import time
import uuid
from collections.abc import Callable
from typing import Any, cast

from msgspec.structs import replace
from pika import frame, spec

import palermo.jobs
from benchmarks import jobs
from benchmarks.ground import Ground, Wire, ground, parser_of
from palermo.brokers.rabbitmq.amqp.frames import Delivered, read_delivery, short
from palermo.brokers.rabbitmq.amqp.messages import read_delivered, to_message, to_properties
from palermo.contract.serialization import Accept, Serializers
from palermo.core.lifecycle import SUCCEEDED
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection
from palermo.event_loop import new_event_loop
from palermo.settings.settings import Settings
from palermo.worker.child.executor import Executor
from palermo.worker.child.slot import Slot
from palermo.worker.ipc.batch_marks import BatchMarks
from palermo.worker.ipc.frames import HEADER, SUCCESS, Ready, fields_of, load, pack, pack_answer, unpack_message
from palermo.worker.ipc.pipes import BlockingPipe, SlotPipe
from palermo.worker.limits import Limits
from palermo.worker.options import WorkerOptions
from palermo.worker.parent.worker import Worker
from palermo.worker.pools.children import Children
from palermo.worker.pools.forked_pool import ForkedPool
from palermo.worker.pools.pool import StackFile
from palermo.worker.process import SlotTitle, nameless_file
from palermo.worker.registered import Registered

#: Jobs of one run.
RUN = 250


class Nowhere:
    """A transport, and a socket, to which all may be written."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written = data

    sendall = write

    def setsockopt(self, *_: object) -> None:
        """Waiting needs no limit here."""

    def close(self) -> None:
        """Nothing is open."""

    abort = close


class Fed(Nowhere):
    """A slot's socket whose parent has always written the next frame already."""

    def __init__(self, frames: list[bytes]) -> None:
        super().__init__()
        self._frames = frames
        self._next = 0

    def recv(self, _: int) -> bytes:
        self._next += 1
        return self._frames[self._next % len(self._frames)]

    def fileno(self) -> int:
        return 0  # the slot looks whether a job has replaced it


class Unforked(Children):
    """Children of a template that there is not: each is ready at once, and what is written to it is gone."""

    def __init__(self) -> None:
        ours, self._theirs = socket.socketpair()
        super().__init__(ours, 0)
        self.pipes: list[SlotPipe] = []
        self.sent = Nowhere()

    async def start(self) -> Registered:
        return Registered(jobs=("benchmarks.jobs.noop",), queues=(jobs.QUEUE,), hooks=frozenset())

    async def launch(self, new: Callable[[], Any]) -> Any:
        child = new()
        pipe = child.connect()
        pipe.connection_made(cast(asyncio.Transport, self.sent))
        self.pipes.append(pipe)
        pipe.data_received(pack_answer(Ready()))
        return child

    async def close(self) -> None:
        self._theirs.close()


class Parent:
    """A worker's parent with one slot, subscribed to a queue in which nothing is."""

    def __init__(self, place: Ground) -> None:
        self._options = WorkerOptions(
            settings=Settings(url=place.url, exchange=place.exchange),
            modules=(jobs.__name__,),
            queues=QueueSelection((jobs.QUEUE,)),
            scheduler=False,
        )
        self._children = Unforked()
        self._pool = ForkedPool(
            self._children,
            slots=1,
            shared=False,
            limits=Limits(),
            stacks=StackFile(nameless_file()),
            marks=BatchMarks(1),
        )

    async def start(self) -> None:
        """Returns once it waits for jobs."""
        registered = await self._pool.start()
        self.worker = Worker(self._options, self._pool, registered, host="localhost", pid=1, show_title=lambda _: None)
        self._running = asyncio.ensure_future(self.worker.run())
        while self.worker._serving.idle() is None or not self._raw()._takers:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # for the answer to the subscription

    def subscription(self) -> tuple[int, str]:
        """The channel's number, and the consumer's tag."""
        ((number, (_, read, _)),) = self._raw()._takers.items()
        return number, read.keywords["consumer"][1:].decode()

    def _raw(self) -> Any:
        session = self.worker.shared.sessions.current
        assert session is not None
        consumer: Any = session.consumer
        return consumer._source.connection.raw

    def run(self, deliveries: list[bytes]) -> None:
        """Take each of these jobs, from the bytes of its delivery to those of its ack, which go nowhere."""
        raw, nowhere = self._raw(), Nowhere()
        pipe, sent = self._children.pipes[0], self._children.sent
        sent.written = b""
        transport, raw._transport = raw._transport, nowhere
        for delivery in deliveries:
            raw.data_received(delivery)
            pipe.data_received(SUCCESS)
        raw.flush()
        raw._transport = transport
        if not (sent.written and nowhere.written):
            raise SystemExit("the parent did not take the jobs its quick way: nothing is measured.")

    async def stop(self) -> None:
        """Leave the broker."""
        self._running.cancel()
        await asyncio.wait({self._running})


def deliveries(wire: Wire, messages: list[Message], *, channel: int, tag: str) -> list[bytes]:
    """The jobs as RabbitMQ delivers them, each in three frames."""
    made = []
    for number, message in enumerate(messages, 1):
        deliver = spec.Basic.Deliver(tag, number, False, wire.exchange, wire.routing_key)
        properties = to_properties(message)
        pieces = (
            frame.Method(channel, deliver).marshal(),
            frame.Header(channel, len(message.body), properties).marshal(),
            frame.Body(channel, message.body).marshal(),
        )
        made.append(b"".join(pieces))
    return made


async def least(run: Callable[[], object], *, runs: int) -> float:
    """Microseconds of a job, in the quickest of many runs."""
    found = []
    for _ in range(runs):
        began = time.process_time()
        run()
        found.append(time.process_time() - began)
        await asyncio.sleep(0.001)  # the worker's own tasks have their turn, and are not counted
    return min(found) / RUN * 1e6


def each(call: Callable[[Any], object], things: list[Any]) -> Callable[[], None]:
    """A run that calls it with each of these."""

    def run() -> None:
        for thing in things:
            call(thing)

    return run


async def main(place: Ground, *, runs: int) -> None:
    """Measure, and print a table."""
    wire = place.wire()
    message = to_message(wire.properties, wire.body, taken_from=jobs.QUEUE)
    parent = Parent(place)
    await parent.start()
    number, tag = parent.subscription()
    came = deliveries(wire, [replace(message, id=str(uuid.uuid4())) for _ in range(RUN)], channel=number, tag=tag)
    consumer = short(tag)
    cut = [(read_delivery(data, 0, number, consumer), data) for data in came]
    read = [(found, data) for found, data in cut if isinstance(found, Delivered)]
    messages = [read_delivered(found, data, jobs.QUEUE) for found, data in read]
    frames = [pack(("run", fields_of(one))) for one in messages]
    job_events, outcomes = parent.worker.shared.job_events, parent.worker.shared.outcomes
    now = time.time()

    def recorded(one: Message) -> None:
        job_events.run_ended(1, one, SUCCEEDED, began_at=now, ended_at=now + 0.001, settled=True)

    serializers, accept = Serializers.default(), Accept.default()
    executor = Executor(registry=palermo.jobs.registry, serializers=serializers, accept=accept, worker="worker-1")
    slot = Slot(BlockingPipe(cast(socket.socket, Fed(frames))), SlotTitle(1, show=lambda _: None), executor)
    body = message.body.decode()
    parts: list[tuple[str, Callable[[], object]]] = [
        ("parent", lambda: parent.run(came)),
        ("  reading three frames", each(lambda data: read_delivery(data, 0, number, consumer), came)),
        ("  properties and headers to a message", each(lambda one: read_delivered(one[0], one[1], jobs.QUEUE), read)),
        ("  its frame for the slot", each(lambda one: pack(("run", fields_of(one))), messages)),
        ("  the journal's counts", each(recorded, messages)),
        ("  what is remembered of it", each(lambda one: outcomes.ended(one, SUCCEEDED, settled=True), messages)),
        ("slot", each(lambda _: slot.turn(), messages)),
        ("  its frame to a message", each(lambda one: unpack_message(load(one[HEADER:])[1]), frames)),
        ("  the executor", each(lambda one: executor.run(one), messages)),
        ("    of that the body, by Palermo", each(lambda one: serializers.decode(one, accept=accept), messages)),
        ("    of that the body, by json alone", each(lambda _: json.loads(body), messages)),
    ]
    print(f"microseconds of a job, the least of {runs} runs of {RUN} jobs; load {os.getloadavg()[0]:.1f}")
    for name, run in parts:
        print(f"{name:<42}{await least(run, runs=runs):7.1f}")
    await parent.stop()


if __name__ == "__main__":
    given = parser_of("What the Python of a worker costs for each plain job.", jobs=RUN).parse_args()
    with ground(given.url) as place, asyncio.Runner(loop_factory=new_event_loop) as loop:
        loop.run(main(place, runs=40 * given.rounds))
