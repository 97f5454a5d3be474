"""A shop whose orders are traced from the program that enqueues them into the jobs, with OpenTelemetry.

See examples/README.md. Spans are printed, or sent to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names.
"""

import os

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

import palermo
from palermo.hooks import WorkerContext

tracer = trace.get_tracer("shop")


def exporter() -> SpanExporter:
    if not os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        return ConsoleSpanExporter()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def trace_as(service: str) -> None:
    """Have this process make spans from here on."""
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(exporter()))
    trace.set_tracer_provider(provider)


@palermo.hook
def after_fork_trace(worker: WorkerContext) -> None:
    # In each slot, and not where the module is imported: a thread sends the spans, and a fork does not copy threads.
    trace_as("shop-worker")


@palermo.job(queue="mail")
def send_receipt(order: int) -> None:
    with tracer.start_as_current_span("render"):
        print(f"receipt for order {order}")


@palermo.job
def charge(order: int) -> None:
    with tracer.start_as_current_span("card"):
        print(f"charging order {order}")
    send_receipt.enqueue(order)


if __name__ == "__main__":
    trace_as("shop")
    with tracer.start_as_current_span("checkout"):
        charge.enqueue(7)
