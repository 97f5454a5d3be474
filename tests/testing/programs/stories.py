"""The jobs of the stories. Each has the name of its story as its first argument, and writes what happens to a file."""

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import palermo


def note(story: str, text: str) -> None:
    """Add a line to the story."""
    with open(os.environ["PALERMO_TEST_STORIES"], "a") as file:
        file.write(json.dumps([story, text]) + "\n")


def run(story: str, text: str = "run") -> int:
    """Note a run of the current job, and return its attempt."""
    current = palermo.current_job()
    assert current is not None
    note(story, f"{text} {current.attempt}")
    return current.attempt


def point(here: str, story: str, where: str = "", how: str = "") -> Any:
    """Note a point in the life of a job, and do there what the story wants."""
    note(story, here)
    match how if here == where else "":
        case "raise":
            raise ValueError("bad")
        case "exit":
            raise SystemExit(3)
        case "refuse":
            raise palermo.DontProcess
        case "false":
            return False
    return None


@palermo.job(queue="hooked")
class Hooked:
    def process(self, *args: str) -> None:
        point("process", *args)

    def before_enqueue(self, *args: str) -> Any:
        return point("before_enqueue", *args)

    def after_enqueue(self, *args: str) -> None:
        point("after_enqueue", *args)

    def before_process(self, *args: str) -> Any:
        return point("before_process", *args)

    def around_process(self, *args: str) -> Iterator[None]:
        point("around enter", *args)
        yield
        point("around exit", *args)

    def after_process(self, *args: str) -> None:
        point("after_process", *args)

    def on_failure(self, error: BaseException, *args: str) -> None:
        point(f"on_failure {type(error).__name__}", *args)

    def on_exhausted(self, error: BaseException, *args: str) -> None:
        point(f"on_exhausted {type(error).__name__}", *args)


def fail(story: str, times: int) -> str:
    attempt = run(story)
    if attempt <= times:
        raise ValueError(f"failed in run {attempt}")
    return f"done in run {attempt}"


@palermo.job(retries=2, backoff=0, keep_result=True)
def at_once(story: str, times: int) -> str:
    return fail(story, times)


@palermo.job(retries=2, backoff=3600)
async def hourly(story: str, times: int) -> str:
    return fail(story, times)


@palermo.job(retries=2, backoff=0)
def asking(story: str, for_what: str) -> None:
    run(story)
    answers = {"retry": palermo.Retry("not yet", delay=600), "snooze": palermo.Snooze(600)}
    raise answers.get(for_what, palermo.Discard("no use"))


@palermo.failure_backend
def told(report: palermo.jobs.hooks.FailureReport) -> None:
    if report.job == "stories.Hooked":
        note(report.preview.split("'")[1], f"back end told of {report.job} {report.failure.message}")


@palermo.job
def plain(story: str, text: str = "run") -> None:
    run(story, text)


@palermo.job(keep_result=True)
def returning(story: str, what: str) -> Any:
    run(story)
    return {"nested": {"a": [1, 2, {"b": None}]}, "object": object()}[what]


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


@palermo.job(timeout=1.0)
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
    for _ in palermo.track(range(3), text="items"):
        job.log("item")


@palermo.job(unique="until_done")
def unique(story: str) -> None:
    run(story)


@palermo.job(limit=1, limit_key=lambda story: story)
def limited(story: str) -> None:
    run(story)


@palermo.job(batch=3, queue="batched", retries=1, backoff=0)
def batched(items: list[tuple[str, str]]) -> None:
    job = palermo.current_job()
    assert job is not None
    note(items[0][0], f"{len(items)}: {' '.join(text for _, text in items)}, {len(job.batch)} ids, run {job.attempt}")
    if items[0][1] == "bad":
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
