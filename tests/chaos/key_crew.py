"""Enqueuers and workers of unique jobs that are killed at random instants: `python -m tests.chaos.key_crew`.

All are forked from one process that has imported everything, so that a thousand kills take minutes. A worker that runs
a job holds a file lock of the job's key, which the kernel takes back with the process. A worker that does not get the
lock has met a second holder. Events are written into files of lines, each by one write.
"""

import asyncio
import fcntl
import os
import random
import signal
import sys
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from palermo.contract.broker import Broker, Delivery, SessionParameters, open_broker
from palermo.contract.sweep import Move, Remove
from palermo.core.address import parse_url
from palermo.core.lifecycle import Ack, Fail, Release, Reschedule, Settlement, fail, requeue
from palermo.core.message import Message
from palermo.core.unique_keys import KeyRequest, Mode, UniqueLock, with_lock
from palermo.core.unique_rules import REPLACE, RERUN, RETURN, EnqueueOutcome
from palermo.errors import BrokerError, NotBrowsable, NotFound
from tests.contract.tools import FAILURE
from tests.contract.workers import Report, Worker, consume
from tests.helpers import whole_lines

KEYS = 3
WORKERS, ENQUEUERS = 3, 2

#: Seconds that what is left gets to come to its end.
PATIENCE = 120


class Crew:
    """One broker, and where is written what happens."""

    def __init__(self, url: str, exchange: str, path: Path) -> None:
        self.session = SessionParameters(address=parse_url(url), exchange=exchange, timeout=30)
        self.path = path

    def note(self, file: str, line: str) -> None:
        """Write one line, whole or not at all."""
        handle = os.open(self.path / file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, f"{line}\n".encode())
        os.close(handle)

    def fork(self, role: Callable[[], Awaitable[None]]) -> int:
        """A process that does this until it is killed."""
        pid = os.fork()
        if pid:
            return pid
        try:
            random.seed(os.urandom(8))
            asyncio.run(self._forever(role))
        except BaseException:
            self.note("errors", traceback.format_exc().replace("\n", " | "))
        finally:
            os._exit(0)

    async def _forever(self, role: Callable[[], Awaitable[None]]) -> None:
        while True:
            with suppress(BrokerError, TimeoutError):
                await role()

    async def enqueues(self) -> None:
        """Enqueue jobs for the keys, one after the other."""
        broker = await open_broker(self.session)
        while True:
            name, id = f"key {random.randrange(KEYS)}", uuid.uuid4().hex
            due = time.time() + random.uniform(0, 0.3) if random.random() < 0.2 else None
            job = Message(id=id, queue="jobs", job="x", body=b"[]", run_at=due)
            job = with_lock(job, UniqueLock(key=name, mode=Mode.DONE))
            way = random.choice([RETURN, RETURN, REPLACE, RERUN])
            (answer,) = await broker.keys.enqueue([KeyRequest(key=name, message=job, call=id, on_duplicate=way)])
            # One that is to run next may be replaced by another, of which nobody may live to tell.
            if answer.outcome is EnqueueOutcome.STORED:
                self.note("stored", id)
            await asyncio.sleep(random.uniform(0, 0.02))

    async def meddles(self) -> None:
        """Take jobs away and bring failed ones back, as people do."""
        broker = await open_broker(self.session)
        while True:
            with suppress(NotFound, NotBrowsable):
                match random.randrange(4):
                    case 0:
                        await broker.purge("jobs")
                    case 1:
                        await broker.sweep("jobs", lambda _: Remove())
                    case 2:
                        waiting = await broker.browse("jobs", limit=1)
                        await broker.cancel([message.id for message in waiting.messages])
                    case _:
                        await broker.sweep("failed", lambda job: Move(requeue(job)))
            await asyncio.sleep(random.uniform(0.1, 0.5))

    async def works(self) -> None:
        """Take jobs, and keep the time."""
        broker = await open_broker(self.session)
        keeping = asyncio.ensure_future(broker.run_scheduler())
        worker = await consume(broker, "jobs", slots=2, report=Report("jobs", slots=2, pid=os.getpid()))
        try:
            await asyncio.gather(self._serve(worker, 1), self._serve(worker, 2))
        finally:
            keeping.cancel()
            await broker.close()

    async def _serve(self, worker: Worker, slot: int) -> None:
        while True:
            delivery = await worker.receive(slot)
            if delivery.cancelled:
                await worker.settle(delivery, Ack(done=False))
                continue
            if delivery.running_at:
                await asyncio.sleep(0.05)
                await worker.settle(delivery, Release())
                continue
            admitted = await worker.admit(delivery)
            if admitted is not None:
                await worker.settle(admitted, await self._run(admitted))

    async def _run(self, delivery: Delivery) -> Settlement:
        message = delivery.message
        if delivery.duplicate_of:
            self.note("duplicates", message.id)
            return Fail(fail(message, FAILURE, worker="w"))
        key = str(message.extra["unique-key"])
        handle = os.open(self.path / f"{key}.lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.note("two", f"{key} {message.id}")
        self.note("ran", message.id)
        await asyncio.sleep(random.uniform(0, 0.03))
        os.close(handle)
        chance = random.random()
        if chance < 0.1:
            return Reschedule(replace(message, retries=(message.retries or 0) + 1, run_at=time.time() + 0.01))
        return Fail(fail(message, FAILURE, worker="w")) if chance < 0.2 else Ack()

    async def held(self) -> list[str]:
        """The keys that jobs have."""
        broker: Broker = await open_broker(self.session)
        try:
            found = await broker.keys.known()
            return [f"{key.name}: {key.holder}" for key in found if key.holder is not None or key.next is not None]
        finally:
            await broker.close()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def main(url: str, exchange: str, kills: int, path: Path, *, meddled: bool) -> None:
    """Kill so many, then let what is left come to its end; says which keys do not."""
    crew = Crew(url, exchange, path)
    roles = [crew.works] * WORKERS + [crew.enqueues] * ENQUEUERS + [crew.meddles] * meddled
    running = [(crew.fork(role), role) for role in roles]
    ran = 0
    for number in range(kills):
        time.sleep(random.uniform(0.0, 0.3))
        if number % 3 == 0:
            # Else on a busy machine nobody lives long enough to do anything.
            until = time.monotonic() + PATIENCE
            while len(set(whole_lines(path / "ran"))) == ran and time.monotonic() < until:
                time.sleep(random.uniform(0.0, 0.05))
            ran = len(set(whole_lines(path / "ran")))
        chosen = random.randrange(len(running))
        pid, role = running[chosen]
        kill(pid)
        running[chosen] = (crew.fork(role), role)
    for pid, role in list(running):
        if role != crew.works:
            kill(pid)
            running.remove((pid, role))
    until, left = time.monotonic() + PATIENCE, ["?"]
    while left and time.monotonic() < until:
        time.sleep(0.5)
        with suppress(BrokerError):
            left = asyncio.run(crew.held())
    for pid, _ in running:
        kill(pid)
    for one in left:
        crew.note("stale", one)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]), meddled="meddled" in sys.argv)
