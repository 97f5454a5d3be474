"""The executor: what a job returned, serialized to be kept; and what is done, and who is told, after a bad end."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import palermo
from palermo.contract.serialization import Serializers
from palermo.core.failure import Failure
from palermo.core.lifecycle import Dropped, Raised, Retrying, StoredResult, Succeeded
from palermo.core.workflow import step_headers
from palermo.errors import JobTimeout
from palermo.jobs.definition import define
from palermo.worker.child.executor import ReturnValues
from tests.worker.bench import Bench


def json(text: str) -> Succeeded:
    return Succeeded(value=StoredResult("application/json", text.encode()))


@pytest.mark.parametrize(
    ("declared", "enqueued", "kept"),
    [
        (None, None, False),
        (True, None, True),
        (False, None, False),
        (None, True, True),
        (False, True, True),
        (True, False, False),
    ],
)
def test_an_enqueue_overrides_the_declaration(
    bench: Bench, declared: bool | None, enqueued: bool | None, kept: bool
) -> None:
    bench.job(lambda: 3 if kept else object(), keep_result=declared)

    assert bench.run(keep_result=enqueued) == (json("3") if kept else Succeeded())


async def coroutine() -> list[int]:
    return [1, 2]


class Job:
    def process(self) -> dict[str, str]:
        return {"a": "ü"}


@pytest.mark.parametrize(
    ("job", "result"),
    [
        (coroutine, json("[1,2]")),
        (lambda: coroutine(), json("[1,2]")),
        (Job, json('{"a":"ü"}')),
        (lambda: None, json("null")),
    ],
    ids=["coroutine", "returns a coroutine", "class", "nothing"],
)
def test_every_kind_of_job_returns(bench: Bench, job: Any, result: Succeeded) -> None:
    bench.job(job, keep_result=True)

    assert bench.run() == result


def test_the_jobs_serializer_writes_it_unless_reading_would_run_code(bench: Bench) -> None:
    bench.job(lambda: 3, name="small", keep_result=True, serializer="msgpack")
    bench.job(lambda: 3, name="any", keep_result=True, serializer="pickle")

    assert bench.run(job="small") == Succeeded(value=StoredResult("application/msgpack", b"\x03"))
    assert bench.run(job="any") == json("3")


class Evil:
    """Whatever it is asked but for its class, it raises."""

    def __getattribute__(self, name: str) -> object:
        if name == "__class__":
            return Evil
        raise RuntimeError(f"asked for {name}")


def circle() -> object:
    made: list[object] = []
    made.append(made)
    return made


def deep() -> object:
    made: list[object] = []
    for _ in range(200_000):
        made = [made]
    return made


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: "x" * 100, "the result has 102 bytes, but max_result allows 100"),
        (lambda: {"a": [1, object()]}, 'the result cannot be serialized: result["a"][1] is of type object'),
        (lambda: [object()], "the result cannot be serialized: result[0] is of type object"),
        (object, "the result cannot be serialized: result is of type object"),
        *((make, "the result cannot be serialized") for make in (Evil, circle, deep, lambda: "\ud800")),
        *((lambda value=value: value, "the result cannot be serialized") for value in (print, ValueError("no"))),
    ],
)
def test_a_result_that_cannot_be_kept_does_not_fail_the_job(make: Callable[[], object], why: str) -> None:
    keeping = ReturnValues(Serializers.default(), limit=100)
    definition = define(lambda: None, name="job", keep_result=True)

    result = keeping.succeeded(Bench().message(), definition, make())

    assert result.value is None
    assert result.refused.startswith(why)
    assert len(result.refused) <= 500


class Interrupted:
    """What is raised in a job may be raised while its result is written."""

    name = "interrupted"
    media_type = "application/x-interrupted"
    safe = True

    def dumps(self, value: object) -> bytes:
        raise JobTimeout("the job ran longer than its timeout of 1 s")

    def loads(self, data: bytes, classes: object) -> object:
        return None


def test_a_time_limit_that_strikes_while_it_is_written_is_the_jobs() -> None:
    serializers = Serializers.default()
    serializers.register(Interrupted())
    keeping = ReturnValues(serializers, serializer="interrupted", limit=100)

    with pytest.raises(JobTimeout):
        keeping.succeeded(Bench().message(), define(lambda: None, name="job", keep_result=True), 3)


@dataclass
class Late:
    """A value during whose serialization the job times out."""

    number: int = 0

    def __getattribute__(self, name: str) -> object:
        if name == "number":
            raise JobTimeout("the job ran longer than its timeout of 1 s")
        return super().__getattribute__(name)


@pytest.mark.parametrize(
    ("make", "result"),
    [(object, Raised), (lambda: "x" * 600_000, Raised), (Late, Retrying)],
    ids=["object", "too large", "timeout"],
)
def test_a_step_whose_output_cannot_be_stored_is_not_retried(
    bench: Bench, make: Callable[[], object], result: type
) -> None:
    bench.job(lambda: make(), retries=2)
    step = step_headers("flow", "step", 0, output=True)

    assert isinstance(bench.run(extra=step), result)


@pytest.fixture
def telling(bench: Bench) -> Bench:
    palermo.failure_backend(lambda report: bench.seen.append(f"back end {report.failure.exception_class}"))
    return bench


def failing(telling: Bench, error: BaseException, **options: Any) -> None:
    """A job that raises this, and whose hooks say so."""

    class Job:
        def process(self, *args: int) -> None:
            self.runs = 1
            raise error

        def on_failure(self, error: BaseException, *args: int) -> None:
            telling.seen.append(f"on_failure {type(error).__name__} {args}")

        def on_exhausted(self, error: BaseException, *args: int) -> None:
            telling.seen.append(f"on_exhausted {type(error).__name__} {args} {self.runs}")

    telling.job(Job, **options)


def test_every_failed_run_is_told_and_only_the_last_exhausts_and_reports(telling: Bench) -> None:
    failing(telling, ValueError("no"), retries=2, backoff=7)

    first = telling.run([1])
    second = telling.run([1], retries=1, policy_retries=1)
    last = telling.run([1], retries=2, policy_retries=2)

    assert isinstance(first, Retrying)
    assert (first.delay, first.failure and first.failure.message) == (7.0, "no")
    assert isinstance(second, Retrying)
    assert isinstance(last, Raised)
    assert telling.seen == [
        *["on_failure ValueError (1,)"] * 3,
        "on_exhausted ValueError (1,) 1",
        "back end ValueError",
    ]


@pytest.mark.parametrize(
    ("error", "options", "result", "told"),
    [
        (ValueError("no"), {}, Raised, ["on_failure ValueError ()", "back end ValueError"]),
        (palermo.Snooze(60), {"retries": 2}, Retrying(None, 60.0), []),
        (palermo.Discard("user is gone"), {"retries": 2}, Dropped("user is gone"), []),
        (
            FileNotFoundError("gone"),
            {"retries": 2, "discard_on": OSError},
            Dropped("FileNotFoundError: gone"),
            ["on_failure FileNotFoundError ()"],
        ),
        (
            ValueError("no"),
            {"retries": 5, "backoff": lambda attempt, error: "fail"},
            Raised,
            ["on_failure ValueError ()", "on_exhausted ValueError () 1", "back end ValueError"],
        ),
    ],
    ids=["no policy", "snoozes", "discards itself", "to be discarded", "backoff gives up"],
)
def test_an_end_at_the_first_run_is_told_to_those_it_concerns(
    telling: Bench, error: Exception, options: dict[str, Any], result: Any, told: list[str]
) -> None:
    failing(telling, error, **options)

    # A snooze is no retry, however many there were.
    found = telling.run(retries=1, policy_retries=99) if told == [] else telling.run()

    assert found == result or type(found) is result
    assert telling.seen == told


def test_a_job_may_ask_for_a_retry_from_an_error_which_is_the_one_kept(telling: Bench) -> None:
    def job() -> None:
        try:
            raise ConnectionError("refused")
        except ConnectionError as error:
            raise palermo.Retry(delay=3) from error

    telling.job(job)
    result = telling.run()

    assert isinstance(result, Retrying)
    assert result.delay == 3.0
    assert result.failure is not None
    assert (result.failure.exception_class, result.failure.message) == ("ConnectionError", "refused")
    assert "palermo.Retry" in result.failure.stack_trace


def test_a_retry_with_a_reason_fails_for_it_in_the_end(telling: Bench) -> None:
    failing(telling, palermo.Retry("not there yet"))

    result = telling.run(policy_retries=25)

    assert isinstance(result, Raised)
    assert (result.failure.exception_class, result.failure.message) == ("palermo.Retry", "not there yet")
    assert telling.seen == ["on_failure Retry ()", "on_exhausted Retry () 1", "back end palermo.Retry"]


@pytest.mark.parametrize("answer", ["soon", -1, ZeroDivisionError()], ids=str)
def test_a_wrong_backoff_function_is_logged_and_waits(
    telling: Bench, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    def backoff(attempt: int, error: BaseException) -> Any:
        assert (attempt, str(error)) == (1, "no")
        if isinstance(answer, Exception):
            raise answer
        return answer

    failing(telling, ValueError("no"), backoff=backoff)
    result = telling.run()

    assert isinstance(result, Retrying)
    assert result.delay == 20.0
    assert caplog.text.count("backoff function failed, using the default delay id=1 job=job") == 1


def test_a_class_that_cannot_be_made_is_retried(telling: Bench) -> None:
    class Job:
        def __init__(self) -> None:
            raise ConnectionError

        def process(self) -> None: ...

    telling.job(Job, retries=1)

    assert isinstance(telling.run(), Retrying)


def test_a_crash_is_answered_by_the_policy(telling: Bench) -> None:
    failing(telling, ValueError(), retries=1, backoff=4, retry_on=JobTimeout)
    timeout = Failure(exception_class="palermo.errors.JobTimeout", message="killed", stack_trace="", failed_at=1)
    crash = Failure(exception_class="palermo.errors.JobCrashed", message="killed", stack_trace="", failed_at=1)

    assert telling.executor().crashed(telling.message(), timeout) == Retrying(timeout, 4.0)
    assert telling.executor().crashed(telling.message(policy_retries=1), timeout) == Raised(timeout)
    assert telling.executor().crashed(telling.message(), crash) == Raised(crash)
    assert telling.executor().crashed(telling.message(job="nobody"), crash) == Raised(crash)
