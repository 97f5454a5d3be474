"""The processes of a pool, whose template and children are played by the test, frame by frame."""

import asyncio
import os
import socket
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from msgspec import to_builtins

from palermo.core.lifecycle import CANCELLED, SUCCEEDED, RunResult
from palermo.core.message import Message
from palermo.worker.ipc import frames
from palermo.worker.ipc.shared_marks import SharedMarks
from palermo.worker.limits import Limits
from palermo.worker.pools.children import Children
from palermo.worker.pools.forked_pool import ForkedPool
from palermo.worker.process import nameless_file
from palermo.worker.registered import Registered


class Peer:
    """The other end of a socket pair: takes the parent's frames and sends answers."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.descriptors: list[int] = []
        self._frames = frames.FrameBuffer()
        end.setblocking(False)

    async def frames(self, kind: str) -> list[tuple[Any, ...]]:
        """The next frames of this kind, all that come together; others are skipped."""
        found: list[tuple[Any, ...]] = []
        async with asyncio.timeout(10):
            while not found:
                came = map(frames.load, self._frames.feed(await self._received()))
                found = [frame for frame in came if frame[0] == kind]
        return found

    async def closed(self) -> None:
        """Wait until the parent has closed the socket pair."""
        async with asyncio.timeout(10):
            while await self._received():
                pass

    async def _received(self) -> bytes:
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self.end, 65_536, 8)
            except BlockingIOError:
                await asyncio.sleep(0.005)
            except ConnectionError:
                return b""
            else:
                self.descriptors += descriptors
                return data


class PlayedTemplate(Peer):
    """A template that starts no process: each child is a socket in the hands of the test."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(theirs)
        self.pid = os.posix_spawnp("sleep", ["sleep", "600"], os.environ)
        self.children = Children(ours, self.pid)
        self._forked: list[PlayedChild] = []

    def pool(self, *, slots: int, shared: bool, grace: float = 60.0) -> ForkedPool:
        stacks, limits = nameless_file(), Limits(timeout_grace=grace)
        return ForkedPool(
            self.children, slots=slots, shared=shared, limits=limits, stacks=stacks, marks=SharedMarks(slots)
        )

    def close(self) -> None:
        for one in (self, *self._forked):
            one.end.close()

    def report(self, **report: Any) -> None:
        self.end.sendall(frames.pack_reply(report))

    async def fork(self) -> tuple[int, "PlayedChild"]:
        """Take the order to fork; returns the number and the new child."""
        ((_, number),) = await self.frames("fork")
        child = PlayedChild(socket.socket(fileno=self.descriptors.pop()))
        self._forked.append(child)
        return number, child

    async def ready_child(self, pool: ForkedPool) -> "PlayedChild":
        """The child of a shared pool, which waits for jobs."""
        starting = asyncio.ensure_future(pool.prepare(1))
        child = await self.fork_ready(NO_PID)
        await starting
        return child

    async def fork_ready(self, pid: int) -> "PlayedChild":
        number, child = await self.fork()
        self.report(forked=number, pid=pid)
        child.answer(frames.Ready())
        return child


class PlayedChild(Peer):
    """A child of the template that runs no job by itself."""

    def answer(self, *answers: frames.FromSlot) -> None:
        self.end.sendall(b"".join(map(frames.pack_answer, answers)))


@asynccontextmanager
async def played_template(*, slots: int, shared: bool) -> AsyncIterator[tuple[PlayedTemplate, ForkedPool]]:
    """A template and its pool, which has started."""
    template = PlayedTemplate()
    pool = template.pool(slots=slots, shared=shared)
    template.report(ready=to_builtins(Registered(jobs=(), queues=(), hooks=frozenset()), enc_hook=dict))
    await pool.start()
    try:
        yield template, pool
    finally:
        template.close()
        await pool.close()


#: No process has such a pid.
NO_PID = 2**22 + 1


def begun(pool: ForkedPool, slot: int = 1, **more: Any) -> asyncio.Future[RunResult]:
    """The result to come of a job that the pool runs in this slot."""
    ended: asyncio.Future[RunResult] = asyncio.get_running_loop().create_future()
    pool.run(slot, Message(id=f"job {slot}", queue="q", job="j", **more), ended.set_result)
    return ended


async def test_a_child_that_is_cut_off_before_its_pid_is_known_is_killed() -> None:
    async with played_template(slots=1, shared=False) as (template, pool):
        starting = asyncio.ensure_future(pool.prepare(1))
        number, child = await template.fork()
        child.answer(frames.Stack(1, ""))  # the parent did not ask for that
        await child.closed()
        template.report(forked=number, pid=NO_PID)

        await template.frames("kill")

        template.report(exited=number, pid=NO_PID, status=-9)
        await template.fork_ready(NO_PID + 1)
        await starting


async def test_a_job_is_killed_once_the_others_in_its_process_have_ended() -> None:
    async with played_template(slots=3, shared=True) as (template, pool):
        child = await template.ready_child(pool)
        for slot in (1, 2):
            begun(pool, slot, rerun_after=0.01 * slot)
        other = begun(pool, 3)
        await asyncio.sleep(0.05)  # the parent waits for the other job by now
        child.end.sendall(b"\x00\x00\x00\x02+3")

        await template.frames("kill")
        assert other.result() is SUCCEEDED


async def test_two_questions_for_one_stack_do_not_end_the_child() -> None:
    async with played_template(slots=1, shared=True) as (template, pool):
        child = await template.ready_child(pool)
        ended = begun(pool)
        asked = asyncio.gather(pool.stack(1), pool.stack(1))

        child.answer(*(frames.Stack(1, "here") for _ in await child.frames("stack")))

        assert await asked == ["here", "here"]
        child.end.sendall(b"\x00\x00\x00\x02+1")
        assert await asyncio.wait_for(ended, 10) is SUCCEEDED


async def test_a_process_in_which_a_job_was_cancelled_runs_no_other() -> None:
    async with played_template(slots=1, shared=False) as (template, pool):
        child = await template.ready_child(pool)
        cancelled = begun(pool)
        pool.cancel(1)

        child.answer(frames.Ended(1, CANCELLED))

        assert await asyncio.wait_for(cancelled, 10) == CANCELLED
        after = begun(pool)
        await child.closed()
        template.report(exited=1, status=0)
        fresh = await template.fork_ready(NO_PID)
        await fresh.frames("run")
        fresh.end.sendall(frames.SUCCESS)
        assert await asyncio.wait_for(after, 10) is SUCCEEDED


async def test_no_timer_of_a_job_outlasts_it() -> None:
    async with played_template(slots=1, shared=False) as (template, pool):
        child = await template.ready_child(pool)
        ended = asyncio.get_running_loop().create_future()

        def done(result: RunResult) -> None:
            ended.set_result(result)

        held = weakref.ref(done)
        pool.run(1, Message(id="a", queue="q", job="j", timeout=600.0, rerun_after=600.0), done)
        del done
        child.end.sendall(frames.SUCCESS)

        await asyncio.wait_for(ended, 10)
        assert held() is None
