"""Hooks and failure backends around a job, without a process."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

import palermo
from palermo.core.failure import Failure
from palermo.core.lifecycle import Retrying, Succeeded
from palermo.errors import JobNotFound
from palermo.jobs import hooks
from tests.worker.bench import Bench


def test_hooks_run_in_resques_order(bench: Bench) -> None:
    seen = bench.seen

    class Job:
        def before_process(self, a: int) -> None:
            seen.append(f"before {a}")

        def around_process_1(self, a: int) -> Iterator[None]:
            seen.append("outer")
            yield
            seen.append("outer ends")

        @contextmanager
        def around_process_2(self, a: int) -> Iterator[None]:
            seen.append("inner")
            yield
            seen.append("inner ends")

        def process(self, a: int) -> int:
            seen.append("process")
            return 2 * a

        def after_process(self, a: int) -> None:
            seen.append("after")

        def on_success(self, doubled: int, a: int) -> None:
            seen.append(f"success {doubled} {a}")

    def before_process(definition: Any, a: int) -> None:
        seen.append(f"global {definition.name} {a}")

    def on_success(definition: Any, returned: object, a: int) -> None:
        seen.append(f"global success {definition.name} {returned} {a}")

    palermo.hook(before_process)
    palermo.hook(on_success)
    bench.job(Job)

    assert bench.run([7]) == Succeeded()
    assert seen == [
        "global job 7", "before 7",
        "outer", "inner", "process", "inner ends", "outer ends",
        "after", "global success job 14 7", "success 14 7",
    ]  # fmt: skip


def _raise(error: BaseException) -> Any:
    raise error


def skips(self: Any) -> Iterator[None]:
    raise palermo.DontProcess
    yield


@pytest.mark.parametrize(
    ("kind", "hook"),
    [
        ("before_process", lambda self: False),
        ("before_process", lambda self: _raise(palermo.DontProcess())),
        ("around_process", skips),
    ],
    ids=["returns false", "raises", "raises before its yield"],
)
def test_a_hook_skips_the_job_which_is_no_failure(bench: Bench, kind: str, hook: Any) -> None:
    bench.job(type("Job", (), {"process": lambda self: bench.seen.append("ran"), kind: hook}))

    assert bench.run() == Succeeded(skipped=True)
    assert bench.seen == []


def test_an_around_hook_may_swallow_the_error_or_make_a_retry_of_it(bench: Bench) -> None:
    class Job:
        def around_process(self) -> Iterator[None]:
            try:
                yield
            except KeyError:
                raise palermo.Retry(delay=1) from None
            except LookupError as error:
                bench.seen.append(str(error))

        def process(self) -> None:
            raise errors.pop()

    errors: list[Exception] = [IndexError("no way"), KeyError()]
    bench.job(Job)

    assert isinstance(bench.run(), Retrying)
    assert bench.run() == Succeeded()
    assert bench.seen == ["no way"]


def test_a_hook_counts_from_its_registration_also_during_a_run(bench: Bench) -> None:
    def after_process(definition: Any) -> None:
        bench.seen.append("for all")

    def on_success(returned: object) -> None:
        bench.seen.append("its own")

    bench.job(lambda: palermo.hook(after_process))
    executor, message = bench.executor(), bench.message()

    executor.run(message)
    bench.registry.get("job").own_hooks.add(on_success)
    executor.run(message)

    assert bench.seen == ["for all", "for all", "its own"]


@pytest.mark.parametrize("kind", ["before_process", "around_process", "after_process"])
def test_a_hook_that_raises_fails_the_job_with_its_error_or_snoozes_it(bench: Bench, kind: str) -> None:
    def hook(self: Any) -> Any:
        raise errors.pop()

    def on_failure(self: Any, error: BaseException) -> None:
        bench.seen.append(repr(error))

    errors: list[Exception] = [LookupError(kind), palermo.Snooze(5)]
    bench.job(type("Job", (), {"process": lambda self: None, kind: hook, "on_failure": on_failure}))

    assert bench.run() == Retrying(None, 5.0)
    assert bench.failure().exception_class == "LookupError"
    assert bench.seen == [f"LookupError('{kind}')"]


def test_every_error_of_a_hook_after_the_job_is_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    class Job:
        def process(self, a: int, b: int) -> None:
            if a:
                raise ValueError("first")

        def on_failure_1(self, error: Exception, a: int, b: int) -> None:
            raise RuntimeError("second")

        def on_failure_2(self, error: Exception, a: int, b: int) -> None:
            bench.seen.append((str(error), a, b))

        def on_exhausted(self, error: Exception, a: int, b: int) -> None:
            raise LookupError

        def on_success(self, returned: object, a: int, b: int) -> None:
            raise ValueError("no")

        async def on_success_later(self, returned: object, a: int, b: int) -> None:
            raise KeyError("also no")

    bench.job(Job, retries=1)

    failure = bench.failure({"args": [1], "kwargs": {"b": 2}}, arguments="both", policy_retries=1)
    assert bench.run([0, 2]) == Succeeded()

    assert (failure.exception_class, failure.message) == ("ValueError", "first")
    assert bench.seen == [("first", 1, 2)]
    kinds = [each.getMessage().partition(" hook failed")[0] for each in caplog.records]
    assert kinds == ["on_failure", "on_exhausted", "on_success", "on_success"]


def test_every_failed_job_is_reported_with_its_error(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    cause = ValueError("the cause")

    def broken(report: hooks.FailureReport) -> None:
        raise RuntimeError("tracker down")

    def tracker(report: hooks.FailureReport) -> None:
        found = (report.id, report.job, report.attempt, report.preview, report.failure.exception_class, report.worker)
        bench.seen.append((found, report.error))

    def job(a: int) -> None:
        raise palermo.Retry("once more") from cause

    palermo.failure_backend(broken)
    palermo.failure_backend(tracker)
    bench.job(job, retries=0)

    bench.failure([1])
    bench.failure(job="nobody")

    [(first, error), (second, not_found)] = bench.seen
    assert (first, error) == (("1", "job", 1, "1", "ValueError", "pid:1@h/worker-1"), cause)
    assert second == ("1", "nobody", 1, "", "palermo.errors.JobNotFound", "pid:1@h/worker-1")
    assert isinstance(not_found, JobNotFound)
    assert caplog.text.count("failure backend failed") == 2


CRASH = Failure(exception_class="palermo.errors.JobCrashed", message="killed", stack_trace="", failed_at=1)


@pytest.mark.parametrize(("name", "told"), [("job", [("JobCrashed", "killed", 5), "killed"]), ("nobody", ["killed"])])
def test_hooks_and_back_ends_hear_of_a_crash(bench: Bench, name: str, told: list[Any]) -> None:
    class Job:
        def process(self, a: int) -> None:
            bench.seen.append("ran")

        def on_failure(self, error: Exception, a: int) -> None:
            bench.seen.append((type(error).__name__, str(error), a))

    palermo.failure_backend(lambda report: bench.seen.append(report.failure.message))
    bench.job(Job)

    bench.executor().crashed(bench.message([5], job=name), CRASH)

    assert bench.seen == told


class Awaits:
    """A job whose hooks are coroutines, and are done when they say so."""

    seen: ClassVar[list[Any]]

    async def before_process(self, a: int) -> bool:
        await asyncio.sleep(0)
        self.seen.append("before")
        return a > 0

    async def after_process(self, a: int) -> None:
        await asyncio.sleep(0)
        self.seen.append("after")

    async def on_success(self, returned: object, a: int) -> None:
        await asyncio.sleep(0)
        self.seen.append(("success", returned))

    async def on_failure(self, error: BaseException, a: int) -> None:
        await asyncio.sleep(0)
        self.seen.append(("failure", str(error)))

    async def on_exhausted(self, error: BaseException, a: int) -> None:
        await asyncio.sleep(0)
        self.seen.append("exhausted")

    def process(self, a: int) -> int:
        self.seen.append("process")
        return 6 // (a - 1)


@pytest.mark.parametrize("in_loop", [False, True])
def test_hooks_of_a_run_may_be_coroutines(bench: Bench, in_loop: bool) -> None:
    Awaits.seen = bench.seen
    bench.job(Awaits, retries=1)

    def run(number: int) -> Any:
        message = replace(bench.message([number]), policy_retries=1, retries=1)
        executor = bench.executor()
        return asyncio.run(executor.run_async(message)) if in_loop else executor.run(message)

    assert run(3) == Succeeded()
    assert bench.seen == ["before", "process", "after", ("success", 3)]
    bench.seen.clear()
    run(1)
    assert bench.seen == ["before", "process", ("failure", "integer division or modulo by zero"), "exhausted"]
    bench.seen.clear()
    assert run(0) == Succeeded(skipped=True)
    assert bench.seen == ["before"]
    bench.seen.clear()
    bench.executor().crashed(bench.message([1]), CRASH)
    assert bench.seen == [("failure", "killed")]
