"""The executor: what a job returned, serialized to be kept where that was asked for."""

from collections.abc import Callable
from typing import Any

import pytest

from palermo.contract.serialization import Serializers
from palermo.core.lifecycle import StoredResult, Succeeded
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
