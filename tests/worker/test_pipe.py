"""The frames between parent, template and slots."""

import asyncio
import pickle
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from palermo.core import lifecycle
from palermo.core.failure import Failure
from palermo.core.message import Message
from palermo.worker.child.slot import Slot
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
from palermo.worker.process import SlotTitle
from tests.worker.bench import Bench


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
