"""Jobs declared in a test are forgotten after it."""

from collections.abc import Iterator

import pytest

from palermo import jobs
from palermo.jobs import failure_backends, hooks
from palermo.jobs.definition import JobDefinition


@pytest.fixture(autouse=True)
def clean_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kept: dict[str, JobDefinition] = dict(jobs.registry._jobs)
    monkeypatch.setattr(hooks, "registered", hooks.Hooks(hooks.JOB_HOOKS + hooks.WORKER_HOOKS))
    monkeypatch.setattr(failure_backends, "_backends", {})
    yield
    jobs.registry._jobs = kept
