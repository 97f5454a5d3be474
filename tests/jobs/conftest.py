"""Jobs declared in a test are forgotten after it, and its default client is closed."""

from collections.abc import Iterator

import pytest

from palermo import jobs
from palermo.client import client as clients
from palermo.jobs import hooks
from palermo.jobs.definition import JobDefinition


@pytest.fixture(autouse=True)
def clean_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kept: dict[str, JobDefinition] = dict(jobs.registry._jobs)
    monkeypatch.setattr(hooks, "registered", hooks.Hooks(hooks.JOB_HOOKS + hooks.WORKER_HOOKS))
    monkeypatch.setattr(hooks, "_backends", ())
    monkeypatch.setattr(clients, "_default", None)
    yield
    jobs.registry._jobs = kept
    if clients._default is not None:
        clients._default.close()
