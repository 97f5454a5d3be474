"""The jobs of the stories. Each has the name of its story as its first argument, and writes what happens to a file."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import palermo


def note(story: str, text: str) -> None:
    """Add a line to the story."""
    with open(os.environ["PALERMO_TEST_STORIES"], "a") as file:
        file.write(json.dumps([story, text]) + "\n")


def misbehave(how: str) -> Any:
    """Do what the story wants at this point."""
    match how:
        case "raise":
            raise ValueError("bad")
        case "exit":
            raise SystemExit(3)
        case "refuse":
            raise palermo.DontProcess
        case "refuse enqueue":
            raise palermo.DontEnqueue
        case "false":
            return False
    return None


def run(story: str, text: str = "run") -> int:
    """Note a run of the current job, and return its attempt."""
    current = palermo.current_job()
    assert current is not None
    note(story, f"{text} {current.attempt}")
    return current.attempt


# Hooks: the same points in a function, in a class and in a coroutine. `where` is the point at which `how` happens.


def point(story: str, here: str, where: str, how: str) -> Any:
    note(story, here)
    return misbehave(how) if here == where else None


@palermo.job(queue="hooked")
def hooked_function(story: str, where: str = "", how: str = "") -> None:
    point(story, "process", where, how)


@palermo.job(queue="hooked")
async def hooked_coroutine(story: str, where: str = "", how: str = "") -> None:
    point(story, "process", where, how)


def before_enqueue(story: str, where: str = "", how: str = "") -> Any:
    return point(story, "before_enqueue", where, how)


def after_enqueue(story: str, where: str = "", how: str = "") -> Any:
    point(story, "after_enqueue", where, how)


def before_process(story: str, where: str = "", how: str = "") -> Any:
    return point(story, "before_process", where, how)


def around_process(story: str, where: str = "", how: str = "") -> Iterator[None]:
    point(story, "around enter", where, how)
    try:
        yield
    finally:
        note(story, "around finally")
    point(story, "around exit", where, how)


def after_process(story: str, where: str = "", how: str = "") -> None:
    point(story, "after_process", where, how)


def on_failure(error: BaseException, story: str, where: str = "", how: str = "") -> None:
    note(story, f"on_failure {type(error).__name__}")
    misbehave(how if where == "on_failure" else "")


def on_exhausted(error: BaseException, story: str, where: str = "", how: str = "") -> None:
    note(story, f"on_exhausted {type(error).__name__}")


HOOKS = (before_enqueue, after_enqueue, before_process, around_process, after_process, on_failure, on_exhausted)
for hook in HOOKS:
    hooked_function.hook(hook)
    hooked_coroutine.hook(hook)


@palermo.job(queue="hooked")
class HookedClass(palermo.JobClass):
    def process(self, story: str, where: str = "", how: str = "") -> None:
        point(story, "process", where, how)

    @classmethod
    def before_enqueue(cls, *args: Any, **kwargs: Any) -> Any:
        return before_enqueue(*args, **kwargs)

    @classmethod
    def after_enqueue(cls, *args: Any, **kwargs: Any) -> Any:
        return after_enqueue(*args, **kwargs)

    def before_process(self, *args: Any, **kwargs: Any) -> Any:
        return before_process(*args, **kwargs)

    def around_process(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        yield from around_process(*args, **kwargs)

    def after_process(self, *args: Any, **kwargs: Any) -> None:
        after_process(*args, **kwargs)

    def on_failure(self, error: BaseException, *args: Any, **kwargs: Any) -> None:
        on_failure(error, *args, **kwargs)

    def on_exhausted(self, error: BaseException, *args: Any, **kwargs: Any) -> None:
        on_exhausted(error, *args, **kwargs)


# Retries.


def fail(story: str, times: int, error: type[BaseException] = ValueError) -> str:
    attempt = run(story)
    if attempt <= times:
        raise error(f"failed in run {attempt}")
    return f"done in run {attempt}"


def noting_failures(error: BaseException, story: str, *args: Any, **kwargs: Any) -> None:
    note(story, f"on_failure {error}")


def noting_the_end(error: BaseException, story: str, *args: Any, **kwargs: Any) -> None:
    note(story, f"on_exhausted {error}")


noting_failures.__name__, noting_the_end.__name__ = "on_failure", "on_exhausted"


def retrying(**options: Any) -> Any:
    """A job with these retry options that notes its failures."""

    def decorate(function: Any) -> Any:
        made = palermo.job(**options)(function)
        made.hook(noting_failures)
        made.hook(noting_the_end)
        return made

    return decorate


@retrying(retries=2, backoff=0)
def at_once(story: str, times: int) -> str:
    return fail(story, times)


@retrying(retries=2, backoff=3600)
def hourly(story: str, times: int) -> str:
    return fail(story, times)


@retrying(retries=3, backoff=[0, 600, 7200])
def listed(story: str, times: int) -> str:
    return fail(story, times)


@retrying(retries=3, backoff=palermo.Linear(step=60))
def linear(story: str, times: int) -> str:
    return fail(story, times)


@retrying(retries=1, backoff=0)
async def coroutine(story: str, times: int) -> str:
    return fail(story, times)


@retrying(retries=3, backoff=0, retry_on=(KeyError,), discard_on=(LookupError,))
def choosy(story: str, times: int, kind: str) -> str:
    return fail(story, times, {"key": KeyError, "index": IndexError, "value": ValueError, "exit": SystemExit}[kind])


@retrying(retries=5, backoff=lambda attempt, error: {1: 0, 2: None, 3: "fail"}.get(attempt, "discard"))
def decided(story: str, times: int) -> str:
    return fail(story, times)


@retrying(retries=5, backoff=lambda attempt, error: "discard")
def discarded(story: str, times: int) -> str:
    return fail(story, times)


@retrying(retry_for=0.001, backoff=0)
def in_time(story: str, times: int) -> str:
    run(story)
    time.sleep(0.01)
    raise ValueError("too late")


@palermo.job(retries=2, backoff=0)
def asking(story: str, for_what: str) -> None:
    attempt = run(story)
    asked = {
        "retry": palermo.Retry("not yet", delay=0),
        "retry later": palermo.Retry("not yet", delay=600),
        "snooze": palermo.Snooze(600),
        "discard": palermo.Discard("no use"),
    }[for_what]
    if attempt <= 2 and for_what == "retry":
        raise asked
    if for_what != "retry":
        raise asked


@palermo.job(retries=1, backoff=0)
def because(story: str) -> None:
    run(story)
    try:
        raise KeyError("lost")
    except KeyError as error:
        raise palermo.Retry(delay=0) from error


@palermo.failure_backend
def told(report: palermo.jobs.hooks.FailureReport) -> None:
    if report.job == "stories.reported":
        note("failure back end", f"told of {report.job} {report.failure.message}")


@palermo.job
def reported(story: str) -> None:
    raise ValueError("for the back end")


# Plain jobs, results and arguments.


@palermo.job
def plain(story: str, text: str = "run") -> None:
    run(story, text)


class Colour(Enum):
    RED = "red"


@dataclass
class Order:
    number: int
    colour: Colour


@palermo.job(keep_result=True)
def returning(story: str, what: str) -> Any:
    run(story)
    return {
        "none": None,
        "number": 7,
        "nested": {"a": [1, 2, {"b": None}]},
        "text": "ä€𝄞",
        "large": "x" * 100_000,
        "object": object(),
    }[what]


@palermo.job(keep_result=True)
def returning_an_order(story: str, order: Order) -> Order:
    note(story, repr(order))
    return Order(order.number + 1, order.colour)


@palermo.job(keep_result=True)
async def awaited(story: str) -> str:
    run(story)
    return "awaited"


@palermo.job(keep_result=True)
def failing_result(story: str) -> None:
    run(story)
    raise ValueError("no result")


@palermo.job(arguments="one")
def one(payload: dict[str, Any]) -> None:
    note(payload["story"], repr(payload))


@palermo.job
def arguments(story: str, a: int, /, b: int = 2, *rest: int, c: int = 3, **more: int) -> None:
    note(story, repr((a, b, rest, c, more)))


@palermo.job
def current(story: str) -> None:
    job = palermo.current_job()
    assert job is not None
    note(story, f"{job.job} {job.queue} {job.attempt} {job.tenant!r} {job.topic!r} {job.batch} {job.id}")


@palermo.job
def nesting(story: str, depth: int) -> None:
    note(story, f"depth {depth} begins")
    if depth:
        nesting.enqueue(story, depth - 1)
    note(story, f"depth {depth} ends")


@palermo.job
def nesting_many(story: str, count: int) -> None:
    plain.enqueue_many([(story, f"part {number}") for number in range(count)])


@palermo.job(timeout=0.2)
def endless(story: str) -> None:
    try:
        while True:
            time.sleep(0.005)
    finally:
        note(story, "cleaned up")


@palermo.job
def logging(story: str) -> None:
    job = palermo.current_job()
    assert job is not None
    job.log("first\nsecond")
    job.progress(0.5, "half")
    for _ in palermo.track(range(3), text="items"):
        job.log("item")


# Keys, limits, delays.


@palermo.job(unique="until_done")
def unique(story: str, text: str = "run") -> None:
    run(story, text)


@palermo.job(unique="until_start")
def until_start(story: str) -> None:
    run(story)


@palermo.job(unique="until_done", retries=1, backoff=3600)
def unique_failing(story: str) -> None:
    run(story)
    raise ValueError("keeps its key")


@palermo.job(unique="until_done")
def unique_enqueuing_itself(story: str, again: bool = True) -> None:
    run(story)
    if again:
        made = unique_enqueuing_itself.options(on_duplicate="rerun").enqueue(story, again)
        note(story, f"again {made.duplicate!r}")


@palermo.job(limit=1, limit_key=lambda story: story)
def limited(story: str) -> None:
    run(story)


@palermo.job(rate="4/s", limit_key=lambda story, *rest: story)
def rated(story: str, text: str = "run") -> None:
    run(story, text)


@palermo.job(delay=3600)
def delayed(story: str) -> None:
    run(story)


@palermo.job(expires=0.001)
def expiring(story: str) -> None:
    run(story)


@palermo.job(tenant=lambda story, tenant, text: tenant, queue="shared")
def of_tenant(story: str, tenant: str, text: str) -> None:
    job = palermo.current_job()
    assert job is not None
    note(story, f"{job.tenant}: {text}")


@palermo.job(queue="high first", priority=5)
def important(story: str, text: str) -> None:
    note(story, text)


# Batches and events.


@palermo.job(batch=3, queue="batched")
def batched(items: list[tuple[str, str]]) -> None:
    job = palermo.current_job()
    assert job is not None
    story = items[0][0]
    note(story, f"{len(items)}: {' '.join(text for _, text in items)}, {len(job.batch)} ids")


@palermo.job(batch=10, queue="failing batches", retries=1, backoff=0)
def failing_batch(items: list[tuple[str, str]]) -> None:
    job = palermo.current_job()
    assert job is not None
    note(items[0][0], f"{len(items)} in run {job.attempt}")
    raise ValueError("the whole batch")


@palermo.subscribe("story.*.told", group="listeners")
def listener(payload: dict[str, Any]) -> None:
    job = palermo.current_job()
    assert job is not None
    note(payload["story"], f"listener heard {job.topic}")


@palermo.subscribe("story.#", group="archive", retries=1, backoff=0)
def archive(payload: dict[str, Any]) -> None:
    attempt = run(payload["story"], "archive")
    if attempt <= payload.get("fail", 0):
        raise ValueError("archive is full")
