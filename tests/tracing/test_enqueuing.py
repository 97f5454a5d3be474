"""The span of an enqueue, and what it leaves in the message."""

import asyncio

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from palermo.client.client import Client
from palermo.core.message import Message
from palermo.errors import QueueNameInvalid


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


def test_nobody_who_does_not_trace_writes_headers(client: Client) -> None:
    client.enqueue("shop.resize")
    client.enqueue_many([("shop.resize", [], {})])

    assert [dict(message.extra) for message in stored(client)] == [{}, {}]


def test_a_tracer_that_raises_keeps_no_job_from_being_stored(
    client: Client, provider: TracerProvider, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no collector")

    monkeypatch.setattr(provider, "get_tracer", broken)

    client.enqueue("shop.resize")

    assert len(stored(client)) == 1
    assert "tracing failed, going on without" in caplog.text
