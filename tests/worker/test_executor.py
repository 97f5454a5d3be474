"""The executor: every way in which a message becomes a result, without a process."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import palermo
from palermo import hooks, jobs
from palermo.core.failure import Failure
from palermo.core.lifecycle import Raised, Succeeded
from palermo.core.message import Message
from palermo.registry import Registry, define
from palermo.serialization import Accept, Serializers
from palermo.worker.executor import Executor

Declare = Callable[..., Any]


@pytest.fixture(autouse=True)
def _hooks() -> Iterator[None]:
    """What a test registers for all jobs is gone behind it."""
    before = dict(hooks.registered._functions), dict(hooks._backends)
    yield
    hooks.registered._functions, hooks._backends = before[0], before[1]
    hooks.registered._sorted = {}


class Bench:
    """An executor with jobs of the test's own."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.seen: list[Any] = []
        self.accept = Accept.default()

    def job(self, target: Any, name: str = "job", **options: Any) -> Any:
        self.registry.register(define(target, name=name, **options))
        return target

    def run(self, args: Any = (), *, job: str = "job", **more: Any) -> Any:
        body = more.pop("body", None)
        message = Message(id="1", queue="q", job=job, body=json.dumps(args).encode() if body is None else body, **more)
        executor = self.executor()
        return executor.run(message)

    def executor(self) -> Executor:
        return Executor(
            registry=self.registry,
            serializers=Serializers.default(),
            accept=self.accept,
            worker="pid:1@h/worker-1",
            now=lambda: 1_234.9,
        )

    def failure(self, *args: Any, **more: Any) -> Failure:
        result = self.run(*args, **more)
        assert isinstance(result, Raised), result
        return result.failure


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_function_runs_with_its_arguments(bench: Bench) -> None:
    bench.job(lambda a, b=2: bench.seen.append((a, b)) if False else None, name="unused")

    def job(a: int, b: int = 2) -> None:
        bench.seen.append((a, b))

    bench.job(job)

    assert bench.run([1]) == Succeeded()
    assert bench.run({"a": 3, "b": 4}) == Succeeded()
    assert bench.run({"args": [5], "kwargs": {"b": 6}}, arguments="both") == Succeeded()
    assert bench.seen == [(1, 2), (3, 4), (5, 6)]


def test_a_class_gets_a_fresh_object_for_each_run(bench: Bench) -> None:
    class Job:
        def __init__(self) -> None:
            self.runs = 0

        def process(self) -> None:
            self.runs += 1
            bench.seen.append(self.runs)

    bench.job(Job)
    bench.run()
    bench.run()

    assert bench.seen == [1, 1]


def test_a_coroutine_job_is_run_to_its_end(bench: Bench) -> None:
    async def job() -> None:
        bench.seen.append("ran")

    bench.job(job)

    assert bench.run() == Succeeded()
    assert bench.seen == ["ran"]


def test_a_job_declared_to_take_one_argument_gets_the_body_as_it_is(bench: Bench) -> None:
    bench.job(lambda value: bench.seen.append(value), arguments="one")

    bench.run({"any": ["thing"]})

    assert bench.seen == [{"any": ["thing"]}]


@pytest.mark.parametrize(
    ("more", "error", "text"),
    [
        ({"defect": "header 'retries' is 'x'"}, "HeaderInvalid", "header 'retries' is 'x'"),
        ({"job": ""}, "JobUnnamed", "no header job-class"),
        ({"job": "shop.mail.send"}, "JobNotFound", "no job 'shop.mail.send' in this worker. Start it with"),
        ({"content_type": "application/x-nothing"}, "MediaTypeUnknown", "application/x-nothing"),
        ({"content_type": "application/x-pickle"}, "MediaTypeRefused", "--accept pickle"),
        ({"body": b"{"}, "DecodeError", ""),
        ({"body": b"[]", "content_encoding": "gzip"}, "DecodeError", ""),
        ({"body": b"[]", "arguments": "some"}, "DecodeError", "header arguments"),
        ({"body": b"[1, 2, 3]"}, "ArgumentsInvalid", "too many positional arguments"),
        ({"body": b'{"nobody": 1}'}, "ArgumentsInvalid", "nobody"),
    ],
)  # fmt: skip
def test_what_keeps_a_job_from_running_is_a_failure_of_its_own_class(
    bench: Bench, more: dict[str, Any], error: str, text: str
) -> None:
    bench.job(lambda a=None: bench.seen.append(a))

    failure = bench.failure(**more)

    assert failure.exception_class == f"palermo.errors.{error}"
    assert text in failure.message
    assert failure.stack_trace.splitlines()[-1].startswith(f"palermo.errors.{error}: ")
    assert "palermo/worker" not in failure.stack_trace
    assert bench.seen == []


def test_a_defect_is_told_before_a_job_that_is_not_there(bench: Bench) -> None:
    assert bench.failure(job="nobody", defect="d").exception_class == "palermo.errors.HeaderInvalid"


def test_a_job_that_raises_fails_with_a_trace_that_begins_in_its_own_code(bench: Bench) -> None:
    def job() -> None:
        raise ValueError("no way")

    bench.job(job)

    failure = bench.failure()

    assert failure.exception_class == "ValueError"
    assert failure.message == "no way"
    assert failure.failed_at == 1_234
    assert failure.stack_trace.splitlines()[1].strip().startswith(f'File "{__file__}"')
    assert "palermo/worker" not in failure.stack_trace


def test_the_trace_of_a_coroutine_job_begins_in_its_own_code(bench: Bench) -> None:
    async def job() -> None:
        raise ValueError("no way")

    bench.job(job)

    assert bench.failure().stack_trace.splitlines()[1].strip().startswith(f'File "{__file__}"')


@pytest.mark.parametrize("error", [SystemExit(0), SystemExit("bye"), KeyboardInterrupt(), GeneratorExit()])
def test_leaving_the_interpreter_is_no_success(bench: Bench, error: BaseException) -> None:
    def job() -> None:
        raise error

    bench.job(job)

    assert bench.failure().exception_class == type(error).__name__


def test_endless_recursion_fails_the_job(bench: Bench) -> None:
    def job() -> None:
        job()

    bench.job(job)

    failure = bench.failure()

    assert failure.exception_class == "RecursionError"
    assert len(failure.stack_trace) < 17_000


def test_an_error_that_cannot_be_shown_fails_the_job_all_the_same(bench: Bench) -> None:
    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def job() -> None:
        raise Rude

    bench.job(job)

    assert bench.failure().exception_class.endswith("Rude")


def test_hooks_run_in_resques_order(bench: Bench) -> None:
    seen = bench.seen

    class Job:
        def before_process_b(self, a: int) -> None:
            seen.append(f"before b {a}")

        def before_process_a(self, a: int) -> None:
            seen.append(f"before a {a}")

        def around_process_1(self, a: int) -> Iterator[None]:
            seen.append("outer")
            yield
            seen.append("outer ends")

        @contextmanager
        def around_process_2(self, a: int) -> Iterator[None]:
            seen.append("inner")
            yield
            seen.append("inner ends")

        def process(self, a: int) -> None:
            seen.append("process")

        def after_process(self, a: int) -> None:
            seen.append("after")

    def before_process(definition: Any, a: int) -> None:
        seen.append(f"global {definition.name} {a}")

    palermo.hook(before_process)
    bench.job(Job)

    assert bench.run([7]) == Succeeded()
    assert seen == [
        "global job 7", "before a 7", "before b 7",
        "outer", "inner", "process", "inner ends", "outer ends",
        "after",
    ]  # fmt: skip


def _raise(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize(
    "before", [lambda self: False, lambda self: _raise(palermo.DontProcess())], ids=["false", "raise"]
)
def test_a_before_hook_skips_the_job_which_is_no_failure(bench: Bench, before: Any) -> None:
    bench.job(type("Job", (), {"process": lambda self: bench.seen.append("ran"), "before_process": before}))

    assert bench.run() == Succeeded(skipped=True)
    assert bench.seen == []


def test_an_around_hook_skips_the_job_before_its_yield_only(bench: Bench) -> None:
    class Skips:
        def around_process(self) -> Iterator[None]:
            raise palermo.DontProcess
            yield

        def process(self) -> None:
            bench.seen.append("ran")

    class Raises:
        def around_process(self) -> Iterator[None]:
            yield

        def process(self) -> None:
            raise palermo.DontProcess

    bench.job(Skips, name="skips")
    bench.job(Raises, name="raises")

    assert bench.run(job="skips") == Succeeded(skipped=True)
    assert bench.failure(job="raises").exception_class == "palermo.hooks.DontProcess"
    assert bench.seen == []


def test_an_around_hook_that_swallows_the_error_makes_the_job_succeed(bench: Bench) -> None:
    class Job:
        def around_process(self) -> Iterator[None]:
            try:
                yield
            except ValueError as error:
                bench.seen.append(str(error))

        def process(self) -> None:
            raise ValueError("no way")

    bench.job(Job)

    assert bench.run() == Succeeded()
    assert bench.seen == ["no way"]


@pytest.mark.parametrize("kind", ["before_process", "around_process", "after_process"])
def test_a_hook_that_raises_fails_the_job_with_its_error(bench: Bench, kind: str) -> None:
    def hook(self: Any) -> Any:
        raise LookupError(kind)

    def on_failure(self: Any, error: BaseException) -> None:
        bench.seen.append(repr(error))

    bench.job(type("Job", (), {"process": lambda self: None, kind: hook, "on_failure": on_failure}))

    assert bench.failure().exception_class == "LookupError"
    assert bench.seen == [f"LookupError('{kind}')"]


def test_on_failure_gets_the_error_and_the_arguments_and_its_own_error_is_only_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    class Job:
        def process(self, a: int, b: int) -> None:
            raise ValueError("first")

        def on_failure_1(self, error: Exception, a: int, b: int) -> None:
            raise RuntimeError("second")

        def on_failure_2(self, error: Exception, a: int, b: int) -> None:
            bench.seen.append((str(error), a, b))

    bench.job(Job)

    failure = bench.failure({"args": [1], "kwargs": {"b": 2}}, arguments="both")

    assert (failure.exception_class, failure.message) == ("ValueError", "first")
    assert bench.seen == [("first", 1, 2)]
    assert "on_failure hook failed" in caplog.text


def test_every_failed_job_is_reported_to_the_back_ends_and_theirs_are_only_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(report: hooks.FailureReport) -> None:
        raise RuntimeError("tracker down")

    def tracker(report: hooks.FailureReport) -> None:
        bench.seen.append((report.id, report.job, report.preview, report.failure.exception_class, report.worker))

    palermo.failure_backend(broken)
    palermo.failure_backend(tracker)
    bench.job(lambda a: _raise(ValueError()))

    bench.failure([1])
    bench.failure(job="nobody")

    worker = "pid:1@h/worker-1"
    assert bench.seen == [
        ("1", "job", "1", "ValueError", worker),
        ("1", "nobody", "", "palermo.errors.JobNotFound", worker),
    ]
    assert caplog.text.count("failure back end failed") == 2


def test_the_current_job_is_known_inside_and_nothing_of_it_outside(bench: Bench) -> None:
    bench.job(lambda: bench.seen.append(palermo.current_job()))

    bench.run(retries=2, created_at=99)

    assert bench.seen == [
        jobs.CurrentJob(id="1", queue="q", job="job", attempt=3, worker="pid:1@h/worker-1", created_at=99)
    ]
    assert palermo.current_job() is None


def test_hooks_and_back_ends_hear_of_a_crash_with_the_jobs_arguments(bench: Bench) -> None:
    class Job:
        def process(self, a: int) -> None:
            bench.seen.append("ran")

        def on_failure(self, error: Exception, a: int) -> None:
            bench.seen.append((type(error).__name__, str(error), a))

    palermo.failure_backend(lambda report: bench.seen.append(report.failure.message))
    bench.job(Job)
    failure = Failure(exception_class="palermo.errors.JobCrashed", message="killed", stack_trace="", failed_at=1)

    bench.executor().crashed(Message(id="1", queue="q", job="job", body=b"[5]"), failure)

    assert bench.seen == [("JobCrashed", "killed", 5), "killed"]


def test_a_crash_whose_arguments_cannot_be_read_is_still_reported(bench: Bench) -> None:
    palermo.failure_backend(lambda report: bench.seen.append(report.failure.message))
    failure = Failure(exception_class="palermo.errors.JobCrashed", message="killed", stack_trace="", failed_at=1)

    bench.executor().crashed(Message(id="1", queue="q", job="nobody"), failure)

    assert bench.seen == ["killed"]


def test_pickle_runs_where_it_is_accepted(bench: Bench) -> None:
    import pickle

    bench.accept = Accept.default().also("pickle")
    bench.job(lambda a: bench.seen.append(a))

    assert bench.run(body=pickle.dumps([{1, 2}]), content_type="application/x-pickle") == Succeeded()
    assert bench.seen == [{1, 2}]
    assert "pickle" in sys.modules
