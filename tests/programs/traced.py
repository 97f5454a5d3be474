"""Jobs that are traced into a file, with a line for each span."""

import asyncio
import json
import os

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

import palermo

tracer = trace.get_tracer("traced")


def _line(span):
    return json.dumps(json.loads(span.to_json())) + "\n"


@palermo.hook
def after_fork_trace(worker):
    file = open(os.environ["SPANS"], "a", buffering=1)  # noqa: SIM115 - the slot's, for as long as it lives
    # So rarely that nothing is sent but what a slot sends as its last.
    processor = BatchSpanProcessor(ConsoleSpanExporter(out=file, formatter=_line), schedule_delay_millis=600_000)
    provider = TracerProvider()
    provider.add_span_processor(processor)
    trace.set_tracer_provider(provider)


@palermo.job
def plain():
    with tracer.start_as_current_span("plain work"):
        palermo.enqueue("traced.nothing")


@palermo.job
async def waiting():
    with tracer.start_as_current_span("waiting work"):
        await asyncio.sleep(0.01)


@palermo.job
def nothing():
    pass


@palermo.job
def failing():
    raise ValueError("no such file")
