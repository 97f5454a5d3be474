"""A plain job takes a shorter way through the executor: it ends as on the longer one, which a hook makes it take."""

import asyncio
import pickle
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

import palermo
from palermo.core.lifecycle import Cancelled, Dropped, Interrupted, Raised, Retrying, Succeeded
from palermo.core.message import Message
from palermo.errors import JobCancelled, JobTerminated
from palermo.jobs import current, hooks
from palermo.worker.child.slot import Slot
from palermo.worker.ipc.frames import HEADER, SUCCESS, fields_of, pack
from palermo.worker.ipc.pipes import TIMED_OUT, BlockingPipe
from palermo.worker.process import SlotTitle
from tests.worker.bench import Bench

VARIABLE: ContextVar[str] = ContextVar("VARIABLE", default="unset")


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def everywhere() -> Iterator[Callable[[Any], Any]]:
    """Registers a hook for all jobs, until the end of the test."""
    added: list[Any] = []

    def add(function: Any) -> Any:
        added.append(function)
        return hooks.registered.add(function)

    yield add
    for function in added:
        hooks.registered.remove(function)


def before_process_nothing(definition: Any, *args: Any, **kwargs: Any) -> None:
    """A hook that lets every job run as it would without."""


def returns() -> str:
    return "a value"


def returns_a_coroutine() -> Any:
    return coroutine()


async def coroutine() -> str:
    await asyncio.sleep(0)
    return "awaited"


async def coroutine_that_raises() -> None:
    await asyncio.sleep(0)
    raise LookupError("in a loop")


def raising(kind: Callable[..., BaseException], *args: Any) -> Callable[[], None]:
    def job() -> None:
        raise kind(*args)

    return job


def out_of_time() -> None:
    """Ends as if its timer had rung: the timer itself may ring before the job has begun."""
    signal.raise_signal(signal.SIGALRM)


@pytest.mark.parametrize(
    ("job", "given", "kind"),
    [
        (returns, {}, Succeeded),
        (returns, {"keep_result": True}, Succeeded),
        (returns_a_coroutine, {"keep_result": True}, Succeeded),
        (coroutine, {"keep_result": True}, Succeeded),
        (coroutine_that_raises, {}, Raised),
        (raising(ValueError, "no"), {}, Raised),
        (raising(StopIteration, "no"), {}, Raised),
        (raising(GeneratorExit), {}, Raised),
        (raising(SystemExit, 0), {}, Raised),
        (raising(KeyboardInterrupt), {}, Raised),
        (raising(hooks.DontProcess), {}, Raised),
        (raising(palermo.Retry, 7), {}, Retrying),
        (raising(palermo.Discard, "for nothing"), {}, Dropped),
        (out_of_time, {"timeout": 60.0}, Raised),
        (returns, {"expires_at": 1_000.0}, Raised),
        (returns, {"defect": "header x is odd"}, Raised),
        (returns, {"body": b"["}, Raised),
        (returns, {"args": ["one too many"]}, Raised),
        (returns, {"job": "unknown"}, Raised),
        (returns, {"job": ""}, Raised),
    ],
)
def test_a_run_ends_as_it_does_with_a_hook_around_it(
    bench: Bench, everywhere: Callable[[Any], Any], job: Any, given: dict[str, Any], kind: type
) -> None:
    bench.job(job)

    plain = bench.run(**given)
    everywhere(before_process_nothing)
    hooked = bench.run(**given)

    assert isinstance(plain, kind)
    assert plain == hooked


@pytest.mark.parametrize(
    ("flag", "error", "result"),
    [("terminated", JobTerminated(""), Interrupted()), ("cancelled", JobCancelled(""), Cancelled())],
    ids=["the worker ends", "someone cancelled it"],
)
def test_what_breaks_into_a_run_ends_it_so_whatever_it_raises(
    bench: Bench, everywhere: Callable[[Any], Any], flag: str, error: Exception, result: Any
) -> None:
    def job() -> None:
        setattr(bench.interrupts, flag, True)
        raise error

    bench.job(job)

    assert bench.run() == result
    everywhere(before_process_nothing)
    assert bench.run() == result


def test_a_hook_counts_from_its_registration_until_its_removal(bench: Bench, everywhere: Callable[[Any], Any]) -> None:
    bench.job(lambda: bench.seen.append("ran"))
    executor, message = bench.executor(), bench.message()

    def before_process_refuse(definition: Any) -> bool:
        return False

    found = [executor.run(message)]
    everywhere(before_process_refuse)
    found.append(executor.run(message))
    hooks.registered.remove(before_process_refuse)
    found.append(executor.run(message))

    assert found == [Succeeded(), Succeeded(skipped=True), Succeeded()]
    assert bench.seen == ["ran", "ran"]


def test_a_jobs_own_hook_that_is_added_later_counts(bench: Bench) -> None:
    bench.job(lambda: bench.seen.append("ran"))
    executor, message = bench.executor(), bench.message()

    def after_process() -> None:
        bench.seen.append("after")

    executor.run(message)
    bench.registry.get("job").own_hooks.add(after_process)
    executor.run(message)

    assert bench.seen == ["ran", "ran", "after"]


def test_a_hook_that_the_job_registers_runs_after_it(bench: Bench, everywhere: Callable[[Any], Any]) -> None:
    def after_process_too(definition: Any) -> None:
        bench.seen.append(definition.name)

    bench.job(lambda: everywhere(after_process_too))

    assert bench.run() == Succeeded()
    assert bench.seen == ["job"]


def test_context_variables_of_one_run_are_gone_in_the_next(bench: Bench) -> None:
    def job() -> None:
        bench.seen.append(VARIABLE.get())
        VARIABLE.set("set")

    bench.job(job)
    executor = bench.executor()
    executor.run(bench.message())
    executor.run(bench.message())

    assert bench.seen == ["unset", "unset"]
    assert VARIABLE.get() == "unset"


def test_the_current_job_is_one_object_in_its_job_and_the_same_with_hooks(
    bench: Bench, everywhere: Callable[[Any], Any]
) -> None:
    def job() -> None:
        bench.seen.append(palermo.current_job())
        assert palermo.current_job() is bench.seen[-1]

    bench.job(job)
    more = {"topic": "no event", "parent-id": "7"}
    message = bench.message(retries=2, created_at=5, tenant="t", extra=more)

    assert bench.executor().run(message) == Succeeded()
    everywhere(before_process_nothing)
    assert bench.executor().run(message) == Succeeded()

    plain, hooked = bench.seen
    assert plain == hooked
    assert plain == current.CurrentJob(
        id="1", queue="q", job="job", attempt=3, worker="pid:1@h/worker-1", created_at=5, tenant="t", parent="7"
    )
    assert palermo.current_job() is None


def test_the_current_job_is_known_in_the_tasks_of_a_coroutine(bench: Bench) -> None:
    async def ask() -> Any:
        return palermo.current_job()

    async def job() -> None:
        bench.seen.extend(
            await asyncio.gather(ask(), asyncio.create_task(ask()), asyncio.to_thread(palermo.current_job))
        )

    bench.job(job)

    assert bench.run() == Succeeded()
    assert [one.id for one in bench.seen] == ["1", "1", "1"]


def test_neither_classes_nor_batches_are_plain(bench: Bench) -> None:
    class Job:
        def process(self) -> None:
            bench.seen.append(self)

    bench.job(Job)
    bench.job(lambda orders: bench.seen.append(orders), name="many", batch=10)
    companion = Message(id="2", queue="q", job="many", body=b"[6]")

    assert [bench.run(), bench.run()] == [Succeeded(), Succeeded()]
    bench.run([5], job="many")
    bench.run([5], job="many", companions=(companion,))

    first, second, alone, both = bench.seen
    assert first is not second
    assert (alone, both) == ([5], [5, 6])


# A slot's turn.


class Turns:
    """A slot of this process on one end of a pair, and its parent's end."""

    def __init__(self, bench: Bench) -> None:
        self.parent, end = socket.socketpair()
        self._end = end
        self.slot = Slot(BlockingPipe(end), SlotTitle(1, show=bench.seen.append), bench.executor())

    def run(self, message: Message) -> bytes:
        """What it answers to this message."""
        self.parent.sendall(pack(("run", fields_of(message))))
        assert self.slot.turn()
        return self.parent.recv(65_536)

    def close(self) -> None:
        self.parent.close()
        self._end.close()


@pytest.fixture
def turns(bench: Bench) -> Iterator[Turns]:
    turns = Turns(bench)
    yield turns
    turns.close()


def test_a_turn_answers_with_what_was_printed_written_out(
    bench: Bench, turns: Turns, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench.job(lambda: print("printed", end=""))
    bench.job(raising(ValueError, "no"), name="raises")

    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        answer = turns.run(bench.message())
        printed = (tmp_path / "out").read_text()

    assert (answer, printed) == (SUCCESS, "printed")
    assert b"ValueError" in turns.run(bench.message(job="raises"))


def test_a_turn_without_a_job_says_idle_and_the_parents_end_ends_it(bench: Bench, turns: Turns) -> None:
    bench.job(returns)

    assert turns.run(bench.message()) == SUCCESS
    assert turns.slot.turn(), "nothing came in time"
    assert bench.seen[-1] == "palermo slot 1: idle"
    turns.parent.close()
    assert not turns.slot.turn()


def test_a_frame_that_begins_in_time_may_end_late() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pipe, frame = BlockingPipe(theirs), pack(("a",))

        assert pipe.read(0.01) is TIMED_OUT
        ours.sendall(frame + frame[:2])
        assert pipe.read() == ("a",)
        ours.sendall(frame[2:])
        assert pipe.read() == ("a",)


def test_what_a_message_does_not_have_is_not_sent() -> None:
    plain = Message(id="1", queue="q", job="j", body=b"[]", created_at=5, preview="")
    rare = Message(id="1", queue="q", job="j", body=b"[]", created_at=5, preview="", max_retries=0, keep_result=False)

    assert pickle.loads(pack(("run", fields_of(plain)))[HEADER:])[1][-1] in (None, {})
    assert pickle.loads(pack(("run", fields_of(rare)))[HEADER:])[1][-1] == {"max_retries": 0, "keep_result": False}
