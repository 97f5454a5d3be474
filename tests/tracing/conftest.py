"""A tracer provider of the test's own, in place of the process's."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from palermo.client.client import Client
from palermo.settings.settings import Settings


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> TracerProvider:
    """OpenTelemetry allows a process one for its whole life; a test puts it where the API looks."""
    provider = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return provider


@pytest.fixture
def spans(provider: TracerProvider) -> InMemorySpanExporter:
    """Where ended spans are."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with Client(Settings(url=f"sqlite:///{tmp_path}/jobs.db")) as client:
        yield client
