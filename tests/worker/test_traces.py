"""Traces of real workers: across broker and processes, in every pool."""

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from tests.harness.rig import Rig


def spans(path: Path) -> dict[str, dict[str, Any]]:
    """What a program of traced.py wrote, by name; those of one name are the same to these tests."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return {span["name"]: span for span in found}


@pytest.mark.parametrize(
    ("any_rig", "pool"), [("sqlite", "process"), ("rabbitmq", "thread"), ("sqlite", "async")], indirect=["any_rig"]
)
def test_a_trace_goes_from_enqueue_to_the_jobs_work(any_rig: Rig, pool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, path = any_rig, any_rig.path / "spans"
    provider = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    with provider.get_tracer("shop").start_as_current_span("order") as order:
        for job in ("plain", "waiting", "failing"):
            rig.enqueue(job, module="traced")
    monkeypatch.undo()

    log = rig.burst("--pool", pool, "-c", "2", modules=("traced",), SPANS=str(path))

    found = spans(path)
    assert {span["context"]["trace_id"] for span in found.values()} == {f"0x{order.get_span_context().trace_id:032x}"}
    for child, parent in (
        ("plain work", "process traced.plain"),
        ("waiting work", "process traced.waiting"),
        ("enqueue traced.nothing", "plain work"),
        ("process traced.nothing", "enqueue traced.nothing"),
    ):
        assert found[child]["parent_id"] == found[parent]["context"]["span_id"], (child, parent)
    assert found["process traced.failing"]["status"]["description"] == "ValueError: no such file"
    assert "tracing failed" not in log
