"""Tells a story: what a job and its hooks did in which order, and what is left of it afterwards.

A story is a generator function. It enqueues, looks and acts through its `Site`. At each `yield` the worker works until
nothing is due.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import stories

from palermo.client.client import Client
from palermo.client.handle import Job
from palermo.errors import NotFound
from palermo.inspector.inspector import Inspector

Story = Callable[["Site"], Iterator[None]]

#: All stories by name.
STORIES: dict[str, Story] = {}

#: What differs from run to run: ids that nobody chose, seconds, and where the program is.
_VARYING = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}"), "ID"),
    (re.compile(r"\b\d+\.\d s\b"), "SECONDS"),
    (re.compile(r"0x[0-9a-f]+"), "ADDRESS"),
)

#: Records that come by chance: that a run has begun is not written if it ends soon, and a client writes its own later.
_CHANCY = ("started", "progress", "enqueued", "action")


@dataclass
class Site:
    """The place of one story: a client, and a way to let time pass."""

    name: str
    client: Client
    #: Lets so many seconds pass for the jobs that wait.
    pass_time: Callable[["Site", float], None]
    jobs: list[Job] = field(default_factory=list)

    @property
    def inspector(self) -> Inspector:
        return Inspector(self.client)

    @property
    def queue(self) -> str:
        """A queue of the story's own."""
        return f"of {self.name}"

    def enqueue(self, job: Any, *args: Any, **options: Any) -> Job:
        """Enqueue a job of the story; its id tells the story and its number."""
        made = self._made(job, args, {}, options)
        self.jobs.append(made)
        self.note(f"enqueued {made.enqueued} {made.duplicate!r}")
        return made

    def try_enqueue(self, job: Any, *args: Any, **options: Any) -> Job | None:
        """`enqueue`, with an error as a part of the story."""
        try:
            return self.enqueue(job, *args, **options)
        except Exception as error:
            self.note(f"enqueue raised {type(error).__name__}: {error}")
            return None

    def _made(self, job: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]) -> Job:
        chosen = job if isinstance(job, str) else job.definition
        id = options.pop("id", f"{self.name}.{len(self.jobs) + 1}")
        given = {} if options.pop("own_id", False) else {"id": id}
        return self.client.enqueue(chosen, (self.name, *args), kwargs, **given, **options)

    def note(self, text: str) -> None:
        stories.note(self.name, f"test: {text}")

    def advance(self, seconds: float) -> None:
        self.pass_time(self, seconds)

    def state(self, job: Job) -> str:
        return str(job.status())


def story(function: Story) -> Story:
    """Add the function to the stories, by its name."""
    return add(function.__name__.replace("_", " "), function)


def add(name: str, function: Story) -> Story:
    assert name not in STORIES
    STORIES[name] = function
    return function


def told(site: Site) -> dict[str, Any]:
    """All that can be seen of a story after its end."""
    inspector, name = site.inspector, site.name
    mine = {job.id for job in site.jobs}
    states, results, lives = {}, {}, {}
    for job in site.jobs:
        status = job.status()
        states[job.id] = [str(status), status.attempt, status.error, status.message]
        lives[job.id] = []
        with suppress(NotFound):
            lives[job.id] = [row["kind"] for row in inspector.life(job.id) if row["kind"] not in _CHANCY]
        if job.keep_result and status.state not in ("pending", "scheduled", "retrying"):
            try:
                results[job.id] = repr(job.result(timeout=30))
            except Exception as error:
                results[job.id] = f"{type(error).__name__}: {error}"
    failed = [_failed_row(row) for row in inspector.failed(limit=10_000) if row["id"] in mine or _is_of(site, row)]
    scheduled = [
        [row["id"], row["job"], row["state"]] for row in inspector.scheduled(limit=10_000) if _is_of(site, row)
    ]
    lines = [text for story, text in _lines() if story == name]
    found = {
        "lines": lines,
        "states": states,
        "lives": lives,
        "results": results,
        "failed": sorted(failed),
        "scheduled": sorted(scheduled),
    }
    text = json.dumps(found)
    for pattern, word in _VARYING:
        text = pattern.sub(word, text)
    plain: dict[str, Any] = json.loads(text)
    return plain


def _failed_row(row: dict[str, Any]) -> list[Any]:
    error, attempts = row["error"], [attempt["message"] for attempt in row["attempts"]]
    known = [row[name] for name in ("id", "job", "queue", "retries", "args", "kwargs")]
    return [*known, error["class"], error["message"], attempts]


def _lines() -> list[tuple[str, str]]:
    path = Path(os.environ["PALERMO_TEST_STORIES"])
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def come_due(site: Site, seconds: float) -> None:
    """For a real worker: put the story's jobs that are due in so many seconds into their queues."""
    until = time.time() + seconds
    due = [
        row["id"]
        for row in site.inspector.scheduled(limit=10_000)
        if _is_of(site, row) and datetime.fromisoformat(row["run_at"]).timestamp() <= until
    ]
    if due:
        site.inspector.run_now(due)


def _is_of(site: Site, row: dict[str, Any]) -> bool:
    return f'"{site.name}"' in json.dumps([row["args"], row["kwargs"]])
