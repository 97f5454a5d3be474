"""The same stories, told by palermo.testing and by a real worker: nothing may differ.

A story is a generator function. It enqueues and acts through its `Site`; at each `yield` the worker works until nothing
is due.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import stories

from palermo.client.client import Client, lend
from palermo.client.handle import Job
from palermo.errors import NotFound
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from palermo.testing import Palermo
from tests.testing.conftest import PROGRAMS

#: What differs from run to run: ids that nobody chose, seconds, and addresses of objects.
_VARYING = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|\b\d+\.\d s\b|0x[0-9a-f]+")

#: Records that come by chance: that a run has begun is not written if it ends soon, and a client writes its own later.
_CHANCY = ("started", "progress", "enqueued", "action")


@dataclass
class Site:
    """The place of one story: a client, and a way to let time pass for the jobs that wait."""

    name: str
    client: Client
    pass_time: Callable[["Site", float], None]
    jobs: list[Job] = field(default_factory=list)

    @property
    def inspector(self) -> Inspector:
        return Inspector(self.client)

    def enqueue(self, job: Any, *args: Any, **options: Any) -> Job:
        """Enqueue a job of the story; its id tells the story and its number."""
        chosen = job if isinstance(job, str) else job.definition
        made = self.client.enqueue(chosen, (self.name, *args), {}, id=f"{self.name}.{len(self.jobs) + 1}", **options)
        self.jobs.append(made)
        self.note(f"enqueued {made.enqueued} {made.conflict and made.conflict.state!r}")
        return made

    def note(self, text: str) -> None:
        stories.note(self.name, f"test: {text}")

    def advance(self, seconds: float) -> None:
        self.pass_time(self, seconds)

    def owns(self, row: Any) -> bool:
        return f'"{self.name}"' in json.dumps([row["args"], row["kwargs"]])


def hooks(site: Site) -> Iterator[None]:
    for where, how in (
        *(("", ""), ("before_enqueue", "false"), ("before_process", "refuse")),
        *(("process", "raise"), ("process", "exit"), ("around exit", "raise")),
    ):
        site.enqueue(stories.Hooked, where, how)
    yield


def retries_at_once(site: Site) -> Iterator[None]:
    for times in (0, 2, 3):
        site.enqueue(stories.at_once, times)
    yield
    site.inspector.failed.requeue(site.jobs[-1].id)
    yield


def retries_an_hour_later(site: Site) -> Iterator[None]:
    site.enqueue(stories.hourly, 1)
    yield
    site.advance(3601)
    yield


def jobs_decide_their_end(site: Site) -> Iterator[None]:
    for what in ("retry", "snooze", "discard"):
        site.enqueue(stories.asking, what)
    yield
    site.advance(601)
    yield


def jobs_that_cannot_run(site: Site) -> Iterator[None]:
    site.enqueue("stories.unknown", queue="jobs")
    site.enqueue(stories.plain, serializer="pickle")
    site.enqueue(stories.plain, expires=0.001)
    time.sleep(0.01)  # until it has expired
    yield


def results(site: Site) -> Iterator[None]:
    site.enqueue(stories.returning, "nested", serializer="msgpack", compression="gzip")
    site.enqueue(stories.returning, "object")
    yield


def what_a_job_knows_and_does(site: Site) -> Iterator[None]:
    site.enqueue(stories.current, tenant="acme")
    site.enqueue(stories.nesting, 3)
    site.enqueue(stories.logging)
    site.enqueue(stories.endless)
    yield


def keys_and_limits(site: Site) -> Iterator[None]:
    for on_duplicate in ("return", "replace", "rerun"):
        site.enqueue(stories.unique, on_duplicate=on_duplicate)
    for _ in range(3):
        site.enqueue(stories.limited)
    yield
    site.enqueue(stories.unique)
    yield


def delays(site: Site) -> Iterator[None]:
    for seconds in (60, 7200):
        site.enqueue(stories.plain, delay=seconds)
    cancelled = site.enqueue(stories.plain, delay=60)
    site.note(site.inspector.scheduled.cancel(cancelled.id)[0]["state"])
    yield
    site.advance(61)
    yield


def batches(site: Site) -> Iterator[None]:
    for text in ("1", "2", "3", "bad", "5", "6"):
        job = site.client.enqueue(stories.batched.definition, ((site.name, text),), id=f"{site.name}.{text}")
        site.jobs.append(job)
    yield


def events(site: Site) -> Iterator[None]:
    for topic, fail in (("story.one.told", 0), ("story.ended", 1), ("story.two.told", 2), ("other.topic", 0)):
        site.client.publish(topic, {"story": site.name, "fail": fail}, id=f"{site.name}.{topic}")
    yield


STORIES: dict[str, Callable[[Site], Iterator[None]]] = {
    story.__name__: story
    for story in (
        *(hooks, retries_at_once, retries_an_hour_later, jobs_decide_their_end, jobs_that_cannot_run, results),
        *(what_a_job_knows_and_does, keys_and_limits, delays, batches, events),
    )
}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, declared: None) -> dict[str, Any]:
    """All stories, told by `palermo worker --burst`: one process for each round of all stories."""
    path = tmp_path_factory.mktemp("real")
    with pytest.MonkeyPatch.context() as patch:
        settings = Settings(url=f"sqlite:///{path}/jobs.db", journal="all", publish_timeout=60.0)
        patch.setenv("PALERMO_TEST_STORIES", str(path / "stories"))
        patch.setenv("PALERMO_URL", settings.url)
        patch.setenv("PALERMO_JOURNAL", settings.journal)
        with lend(Client(settings)) as client:
            work(path)  # the groups of events subscribe
            sites = {name: Site(name, client, come_due) for name in STORIES}
            telling = {name: STORIES[name](site) for name, site in sites.items()}
            while telling := {name: rest for name, rest in telling.items() if next(rest, "over") is None}:
                work(path)
            client.close()
            return {name: told(site) for name, site in sites.items()}


def work(path: Path) -> None:
    command = [sys.executable, "-m", "palermo", "worker", "stories", "--burst", "-q", "*"]
    with (path / "log").open("a") as log:
        done = subprocess.run(
            command, cwd=PROGRAMS, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=60, check=False
        )
    assert done.returncode == 0, (path / "log").read_text()


def come_due(site: Site, seconds: float) -> None:
    """For a real worker: put the story's jobs that are due in so many seconds into their queues."""
    until = time.time() + seconds
    waiting = [row for row in site.inspector.scheduled.list(limit=10_000) if site.owns(row)]
    due = [row["id"] for row in waiting if datetime.fromisoformat(row["run_at"]).timestamp() <= until]
    if due:
        site.inspector.scheduled.run_now(due)


@pytest.mark.slow
@pytest.mark.parametrize("name", STORIES)
def test_a_story_is_the_same_with_a_real_worker(name: str, real: dict[str, Any]) -> None:
    with Palermo(raise_failures=False) as palermo:
        site = Site(name, palermo.client, lambda _, seconds: palermo.clock.advance(seconds))
        for _ in STORIES[name](site):
            palermo.work_until_idle()

        palermo.client.close()  # which writes its records into the journal
        assert told(site) == real[name]


def told(site: Site) -> dict[str, Any]:
    """All that can be seen of a story after its end."""
    lines = [json.loads(line) for line in Path(os.environ["PALERMO_TEST_STORIES"]).read_text().splitlines()]
    mine = {job.id for job in site.jobs}
    failed = [row for row in site.inspector.failed.list(limit=10_000) if row["id"] in mine or site.owns(row)]
    found = {
        "lines": [text for story, text in lines if story == site.name],
        "jobs": [_seen(site, job) for job in site.jobs],
        "failed": sorted(map(_failed_row, failed)),
        "scheduled": sorted(
            [row["id"], row["state"]] for row in site.inspector.scheduled.list(limit=10_000) if site.owns(row)
        ),
    }
    plain: dict[str, Any] = json.loads(_VARYING.sub("VARYING", json.dumps(found)))
    return plain


def _seen(site: Site, job: Job) -> list[Any]:
    """The status of a job, the records of its life, and its result."""
    status, life, result = job.status(), list[str](), ""
    with suppress(NotFound):
        life = [row["kind"] for row in site.inspector.history.timeline(job.id) if row["kind"] not in _CHANCY]
    if job.keep_result and status.state not in ("pending", "scheduled", "retrying"):
        try:
            result = repr(job.result(timeout=30))
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
    return [job.id, str(status), status.attempt, status.error, status.message, life, result]


def _failed_row(row: Any) -> list[Any]:
    known = [row[name] for name in ("id", "job", "queue", "retries", "args", "kwargs")]
    return [*known, row["error"]["class"], row["error"]["message"], [one["message"] for one in row["attempts"]]]
