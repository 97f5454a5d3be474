"""The spans of an enqueue and of the run below it, with a tracer provider of the test's own."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

import palermo
from palermo.client.client import Client
from palermo.core.failure import Failure
from palermo.core.lifecycle import Raised, Succeeded
from palermo.core.message import Message
from palermo.errors import QueueNameInvalid
from palermo.jobs import registry
from palermo.testing import Palermo
from tests.worker.bench import Bench


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


def stored(client: Client, queue: str = "jobs") -> list[Message]:
    return list(client.run(lambda broker: broker.browse(queue)).messages)


def test_an_enqueue_is_a_producer_span_and_its_context_travels(
    client: Client, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    with provider.get_tracer("shop").start_as_current_span("order"):
        job = client.enqueue("shop.resize", ["x.png"], queue="slow")

    span, order = spans.get_finished_spans()
    [message] = stored(client, "slow")
    trace_id, span_id = format_trace_id(span.context.trace_id), format_span_id(span.context.span_id)
    assert (span.name, span.kind, span.parent) == ("enqueue shop.resize", SpanKind.PRODUCER, order.context)
    assert dict(span.attributes) == {
        "messaging.system": "palermo",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "slow",
        "messaging.message.id": job.id,
        "messaging.message.body.size": len(message.body),
        "palermo.job": "shop.resize",
    }
    assert list(message.extra) == ["traceparent"]
    assert message.extra["traceparent"].startswith(f"00-{trace_id}-{span_id}-")


def test_what_else_propagates_travels_too(client: Client, spans: InMemorySpanExporter) -> None:
    sent = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "vendor=1"}
    token = context.attach(baggage.set_baggage("tenant", "acme", propagate.extract(sent)))
    try:
        client.enqueue("shop.resize")
    finally:
        context.detach(token)

    [message] = stored(client)
    assert message.extra["tracestate"] == "vendor=1"
    assert message.extra["baggage"] == "tenant=acme"
    assert message.extra["traceparent"].split("-")[1] == "a" * 32


async def test_an_enqueue_from_an_event_loop_is_traced_as_well(
    client: Client, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    with provider.get_tracer("shop").start_as_current_span("order"):
        await asyncio.gather(*(client.enqueue_async("shop.resize", [number]) for number in range(2)))

    *enqueued, around = spans.get_finished_spans()
    assert [span.parent for span in enqueued] == [around.context] * 2
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_a_call_that_enqueues_many_or_fails_is_one_span(client: Client, spans: InMemorySpanExporter) -> None:
    client.enqueue_many([("shop.resize", [number], {}) for number in range(3)])
    with pytest.raises(QueueNameInvalid):
        client.enqueue("shop.resize", queue=" mail")

    many, span = spans.get_finished_spans()
    assert (many.name, many.kind) == ("enqueue_many", SpanKind.PRODUCER)
    assert many.attributes["messaging.batch.message_count"] == 3
    traced = {message.extra["traceparent"].split("-")[2] for message in stored(client)}
    assert traced == {format_span_id(many.context.span_id)}
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "palermo.errors.QueueNameInvalid"
    assert [event.name for event in span.events] == ["exception"]


def test_a_tracer_that_raises_keeps_no_job_from_being_stored(
    client: Client, provider: TracerProvider, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no collector")

    monkeypatch.setattr(provider, "get_tracer", broken)

    client.enqueue("shop.resize")

    assert len(stored(client)) == 1
    assert "tracing failed, continuing without it" in caplog.text


# -- the span of a run

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


def test_a_workflow_is_one_trace_with_all_its_steps(provider: TracerProvider, spans: InMemorySpanExporter) -> None:
    with Palermo() as site, registered() as flows:
        flows["outer"].enqueue()
        site.work_until_idle()
        [enqueued, *runs] = spans.get_finished_spans()
        assert sorted(span.name.rpartition(".")[2] for span in runs) == ["inner", "one", "one", "one", "outer", "two"]
        assert {span.context.trace_id for span in runs} == {enqueued.context.trace_id}
        above = {span.name.rpartition(".")[2]: span.parent.span_id for span in runs if span.parent is not None}
        [outer] = [span for span in runs if span.name == "process traced.outer"]
        assert above["inner"] == above["two"] == outer.context.span_id

        spans.clear()
        flow = palermo.Workflow()
        flow.step(flows["two"])
        with provider.get_tracer("shop").start_as_current_span("order"):
            flow.enqueue()
        site.work_until_idle()
        assert len(spans.get_finished_spans()) == 3
        assert len({span.context.trace_id for span in spans.get_finished_spans()}) == 1


@contextmanager
def registered() -> Iterator[dict[str, Any]]:
    """A workflow with a map, with another one inside, and with a job."""

    @palermo.job(name="traced.one")
    def one(number: int) -> None: ...

    @palermo.job(name="traced.two")
    def two() -> None: ...

    @palermo.workflow(name="traced.inner")
    def inner(flow: palermo.Workflow) -> None:
        flow.map(one, range(3))

    @palermo.workflow(name="traced.outer")
    def outer(flow: palermo.Workflow) -> None:
        flow.after(flow.step(inner)).step(two)

    yield {"outer": outer, "two": two}
    for name in ("one", "two", "inner", "outer"):
        registry.unregister(f"traced.{name}")
