"""The span of a run: below its enqueue, above what the job does, and with what came of it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import palermo
from palermo.core.failure import Failure
from palermo.core.lifecycle import Raised, Succeeded
from tests.worker.bench import Bench

TRACE, PARENT = "a" * 32, "b" * 16

HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01", "baggage": "tenant=acme"}


def raises() -> None:
    raise ValueError("no such file")


def snoozes() -> None:
    raise palermo.Snooze(30)


def discards() -> None:
    raise palermo.Discard("not worth it")


def works(provider: TracerProvider) -> Callable[[], None]:
    def work() -> None:
        with provider.get_tracer("shop").start_as_current_span("resizing") as span:
            span.set_attribute("tenant", str(baggage.get_baggage("tenant")))

    return work


def works_async(provider: TracerProvider) -> Any:
    async def work() -> None:
        await asyncio.gather(asyncio.to_thread(works(provider)))

    return work


@pytest.mark.parametrize("make", [works, works_async])
@pytest.mark.parametrize("in_loop", [False, True])
def test_a_run_is_below_its_enqueue_and_above_what_the_job_does(
    provider: TracerProvider, spans: InMemorySpanExporter, make: Any, in_loop: bool
) -> None:
    bench = Bench()
    bench.job(make(provider))
    message = bench.message(extra=HEADERS, retries=1)

    result = asyncio.run(bench.executor().run_async(message)) if in_loop else bench.executor().run(message)

    resizing, run = spans.get_finished_spans()
    assert result == Succeeded()
    assert (run.name, run.kind, run.status.status_code) == ("process job", SpanKind.CONSUMER, StatusCode.UNSET)
    assert run.parent is not None
    assert (f"{run.context.trace_id:x}", f"{run.parent.span_id:x}") == (TRACE, PARENT)
    assert dict(run.attributes or {}) == {
        "messaging.system": "palermo",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.client.id": "pid:1@h/worker-1",
        "messaging.destination.name": "q",
        "messaging.message.id": "1",
        "messaging.message.body.size": 2,
        "palermo.job": "job",
        "palermo.attempt": 2,
        "palermo.outcome": "succeeded",
    }
    assert resizing.parent == run.context
    assert dict(resizing.attributes or {}) == {"tenant": "acme"}
    assert trace.get_current_span() is trace.INVALID_SPAN


@pytest.mark.parametrize(
    ("target", "options", "outcome", "error"),
    [
        (raises, {}, "failed", "ValueError: no such file"),
        (raises, {"retries": 3}, "retried", "ValueError: no such file"),
        (snoozes, {}, "snoozed", None),
        (discards, {}, "discarded", None),
    ],
)
def test_what_came_of_a_run_is_told_and_errors_are_recorded(
    spans: InMemorySpanExporter, target: Any, options: dict[str, Any], outcome: str, error: str | None
) -> None:
    bench = Bench()
    bench.job(target, **options)

    bench.run()

    [span] = spans.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["palermo.outcome"] == outcome
    assert span.status.description == error
    recorded = [dict(event.attributes or {}) for event in span.events if event.name == "exception"]
    assert [f"{each['exception.type']}: {each['exception.message']}" for each in recorded] == ([error] if error else [])
    assert all("in raises" in str(each["exception.stacktrace"]) for each in recorded)


def test_a_job_whose_process_died_or_that_cannot_be_run_has_a_span_too(spans: InMemorySpanExporter) -> None:
    bench = Bench()
    bench.job(raises)
    killed = "palermo.errors.JobCrashed"
    failure = Failure(exception_class=killed, message="killed by signal 11", stack_trace="", failed_at=1)

    result = bench.executor().crashed(bench.message(extra=HEADERS), failure)
    bench.run(job="shop.gone")

    crashed, gone = spans.get_finished_spans()
    assert result == Raised(failure)
    assert crashed.attributes is not None
    assert (crashed.attributes["palermo.crashed"], crashed.attributes["error.type"]) == (True, killed)
    assert (gone.name, gone.status.status_code) == ("process shop.gone", StatusCode.ERROR)


@pytest.mark.parametrize("headers", [{}, {"traceparent": 7}, {"traceparent": "nonsense"}, {"tracestate": b"\xff"}])
def test_an_unreadable_context_begins_a_trace(spans: InMemorySpanExporter, headers: dict[str, Any]) -> None:
    bench = Bench()
    bench.job(lambda: None)

    assert bench.run(extra=headers) == Succeeded()

    [span] = spans.get_finished_spans()
    assert span.parent is None
