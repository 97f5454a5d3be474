"""The processes of a pool, whose template and children are played by the test, frame by frame; and those frames."""

import asyncio
import os
import pickle
import socket
import sys
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack, to_builtins

from palermo.core import lifecycle
from palermo.core.failure import Failure
from palermo.core.lifecycle import CANCELLED, SUCCEEDED, RunResult
from palermo.core.message import Message
from palermo.worker.child.slot import Slot
from palermo.worker.ipc import frames
from palermo.worker.ipc.frames import (
    MAX_REPLY,
    SUCCESS,
    Changed,
    Ended,
    FrameBuffer,
    InvalidFrame,
    fields_of,
    pack,
    pack_answer,
    unpack_answer,
    unpack_message,
)
from palermo.worker.ipc.pipes import TIMED_OUT, BlockingPipe, SlotPipe
from palermo.worker.ipc.shared_marks import SharedMarks
from palermo.worker.limits import Limits
from palermo.worker.pools.children import Children
from palermo.worker.pools.forked_pool import ForkedPool
from palermo.worker.process import SlotTitle, nameless_file
from palermo.worker.registered import Registered
from tests.worker.bench import Bench


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


@pytest.mark.parametrize("jobs", [1, 2])
async def test_a_cancelled_job_does_not_run_again_after_a_crash(jobs: int) -> None:
    async with played_template(slots=2, shared=True) as (template, pool):
        child = await template.ready_child(pool)
        cancelled, *_ = [begun(pool, slot) for slot in range(1, jobs + 1)]
        pool.cancel(1)

        child.end.close()  # another job has crashed the process while this one cleans up
        template.report(exited=1, status=-11)

        assert await asyncio.wait_for(cancelled, 10) == CANCELLED


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


@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(1, 9))
def test_frames_survive_being_cut_anywhere(payloads: list[bytes], size: int) -> None:
    stream = b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads)
    frames = FrameBuffer()

    found = [payload for at in range(0, len(stream), size) for payload in frames.feed(stream[at : at + size])]

    assert found == payloads
    assert frames.empty


def test_a_frame_above_the_limit_is_garbage_before_it_is_read() -> None:
    with pytest.raises(InvalidFrame, match="4294967295 bytes"):
        FrameBuffer(limit=100).feed(b"\xff\xff\xff\xff")


LARGEST = Failure(exception_class="x" * 400, message="\u20ac" * 2_000, stack_trace="\u20ac" * 5_300, failed_at=1)


@pytest.mark.parametrize(
    "result",
    [
        lifecycle.Raised(LARGEST),
        lifecycle.Succeeded(value=lifecycle.StoredResult("application/json", b'"' * lifecycle.MAX_RESULT)),
        lifecycle.Succeeded(value=lifecycle.StoredResult("application/msgpack", b"\xff" * lifecycle.MAX_RESULT)),
    ],
    ids=["failure", "JSON", "bytes"],
)
def test_the_largest_results_fit_the_limit_of_what_a_slot_may_send(result: lifecycle.Result) -> None:
    assert len(pack_answer(Ended(500, result))) < MAX_REPLY


@pytest.mark.parametrize("payload", [b"", b"-", b"[1]", b"{", b"\xff\xfe", b"\x91" * 100_000])
def test_answers_that_are_no_known_message_are_garbage(payload: bytes) -> None:
    with pytest.raises(InvalidFrame):
        unpack_answer(payload)


FAILURE = Failure(exception_class="ValueError", message="no", stack_trace="…", failed_at=1)


@pytest.mark.parametrize(
    "result",
    [
        lifecycle.Succeeded(skipped=True),
        lifecycle.Succeeded(value=lifecycle.StoredResult("application/json", b'{"a": "\xc3\xbc"}')),
        lifecycle.Succeeded(value=lifecycle.StoredResult("application/msgpack", b"\xff\x00")),
        lifecycle.Succeeded(refused="too large"),
        lifecycle.Raised(FAILURE),
        lifecycle.Retrying(FAILURE, 2.5),
        lifecycle.Retrying(None, 0.0),
        lifecycle.Dropped("gone"),
        lifecycle.Interrupted(),
        lifecycle.Cancelled(),
        lifecycle.BatchResult((lifecycle.Succeeded(), lifecycle.Retrying(None, 2.0))),
    ],
    ids=lambda result: type(result).__name__,
)
def test_a_result_reaches_the_parent_as_it_was(result: lifecycle.RunResult) -> None:
    assert unpack_answer(pack_answer(Ended(1, result))[4:]) == Ended(1, result)


def test_text_that_utf_8_cannot_hold_reaches_the_parent_with_question_marks() -> None:
    assert unpack_answer(pack_answer(Ended(1, lifecycle.Dropped("\ud800 gone")))[4:]) == Ended(
        1, lifecycle.Dropped("? gone")
    )


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"type": "Nothing"},
        {"type": "Ended", "slot": 1, "result": "x"},
        {"type": "Ended", "slot": "1", "result": {"state": "interrupted"}},
        {"type": "Ended", "slot": 1, "result": {"state": "failed", "failure": {"exception_class": 1}}},
        {"type": "Ended", "slot": 1, "result": {"state": "retrying", "failure": None, "delay": -1.0}},
        {"type": "Ended", "slot": 1, "result": {"state": "retrying", "failure": None, "delay": 1e300}},
        {"type": "Ended", "slot": 1, "result": {"state": "retrying", "failure": None, "delay": float("nan")}},
        {"type": "Ended", "slot": 1, "result": {"state": "retrying", "failure": None}},
        {"type": "Ended", "slot": 1, "result": {"state": "done", "value": {"content_type": "application/json"}}},
        {"type": "Changed", "changes": "x" * 2_001},
        {"type": "Reported", "slot": 1, "report": 3},
        {"type": "Reported", "slot": 1, "report": {"fraction": 2.0}},
        {"type": "Reported", "slot": 1, "report": {"lines": [3]}},
        {"type": "Reported", "slot": 1, "report": {"lines": ["x" * 1_001]}},
        {"type": "Reported", "slot": 1, "report": {"lines": ["x"] * 1_002}},
        {"type": "Reported", "slot": 1, "report": {"text": "x" * 201}},
    ],
    ids=lambda answer: str(answer)[:100],
)
def test_what_a_slot_sends_is_checked(answer: dict[str, object]) -> None:
    with pytest.raises(InvalidFrame):
        unpack_answer(msgpack.encode(answer))


def test_a_message_reaches_the_slot_with_all_that_running_it_needs() -> None:
    message = Message(
        id="1", queue="q", job="j", body=b"[]", retries=2, created_at=5, extra={"region": "t"}, tenant="t", defect="d",
        policy_retries=1, max_retries=7, retrying_since=9.5, timeout=3.0, expires_at=4.0, keep_result=True,
    )  # fmt: skip

    kind, fields, more = pickle.loads(pack(("run", fields_of(message), "more"))[4:])

    assert (kind, more) == ("run", "more")
    assert unpack_message(fields) == message


def _parent(*sent: bytes) -> list[object]:
    """What the parent makes of what a slot sends."""

    async def run() -> list[object]:
        loop = asyncio.get_running_loop()
        seen: list[object] = []
        ended = loop.create_future()

        def end(why: str) -> None:
            seen.append(why)
            ended.set_result(None)

        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            slot = SlotPipe(1, lambda slot: seen.append(f"success of {slot}"), seen.append, end)
            await loop.create_unix_connection(lambda: slot, sock=ours)
            for data in sent:
                theirs.sendall(data)
                await asyncio.sleep(0)
        await ended
        return seen

    return asyncio.run(run())


def test_the_parent_hears_successes_replies_and_the_end() -> None:
    frame = pack_answer(Changed("umask"))

    seen = _parent(SUCCESS, frame[:3], frame[3:], SUCCESS + frame, b"\0\0\0\3+12")

    success = "success of 1"
    assert seen == [success, Changed("umask"), success, Changed("umask"), "success of 12", ""]


@pytest.mark.parametrize("sent", [b"\xff" * 64, b"\0\0\0\x02hi", b"\0\0\0\x02+x", b"\0\0\0\0"])
def test_the_parent_ends_a_pair_on_which_garbage_arrives(sent: bytes) -> None:
    seen = _parent(sent)

    assert len(seen) == 1
    assert str(seen[0]).startswith("sent invalid data: ")


def test_a_slot_reads_what_the_parent_buffers_and_then_the_end() -> None:
    sent = [("a",), ("b" * 70_000,), (b"c" * 16 * 1024 * 1024,), ("d",)]

    async def run() -> list[object]:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        slot = SlotPipe(1, lambda _: None, lambda reply: None, lambda why: None)
        await loop.create_unix_connection(lambda: slot, sock=ours)
        for values in sent:
            slot.write(pack(values))
        with theirs:
            child = BlockingPipe(theirs)
            found: list[object] = [await loop.run_in_executor(None, child.read) for _ in sent]
            slot.close()
            return [*found, await loop.run_in_executor(None, child.read)]

    assert asyncio.run(run()) == [*sent, None]


@pytest.fixture
def turns() -> Iterator[tuple[Bench, socket.socket, Slot]]:
    """A bench, the parent's end of a pair, and a slot of this process on the other one."""
    bench = Bench()
    parent, end = socket.socketpair()
    with parent, end:
        yield bench, parent, Slot(BlockingPipe(end), SlotTitle(1, show=bench.seen.append), bench.executor())


def test_a_slot_answers_when_what_its_job_printed_is_written(
    turns: tuple[Bench, socket.socket, Slot], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench, parent, slot = turns
    bench.job(lambda: print("printed", end=""))

    parent.sendall(pack(("run", fields_of(bench.message()))))
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert slot.turn()
        printed = (tmp_path / "out").read_text()

    assert (parent.recv(65_536), printed) == (SUCCESS, "printed")
    assert slot.turn(), "nothing came in time"
    assert bench.seen[-1] == "palermo slot 1: idle"
    parent.close()
    assert not slot.turn()


def test_a_frame_that_begins_in_time_may_end_late() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pipe, frame = BlockingPipe(theirs), pack(("a",))

        assert pipe.read(0.01) is TIMED_OUT
        ours.sendall(frame + frame[:2])
        assert pipe.read() == ("a",)
        ours.sendall(frame[2:])
        assert pipe.read() == ("a",)
