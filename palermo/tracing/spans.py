"""OpenTelemetry spans with attributes from its messaging conventions, and some of Palermo's own."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from msgspec.structs import replace
from opentelemetry import context, propagate, trace
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, TracerProvider

from palermo.core.failure import Failure, class_name
from palermo.core.lifecycle import BatchResult, Cancelled, Dropped, Interrupted, Raised, Retrying, RunResult, Succeeded
from palermo.core.message import Message
from palermo.core.version import VERSION

log = logging.getLogger("palermo.tracing")

#: Milliseconds for sending the last spans, if the provider respects a timeout.
_FLUSH_MS = 2_000


@contextmanager
def _harmless() -> Iterator[None]:
    """Log errors of exporters, samplers and propagators, because they must not lose or reject a job."""
    try:
        yield
    except Exception:
        log.exception("tracing failed, continuing without it")


@lru_cache(maxsize=4)
def _tracer(provider: TracerProvider) -> Tracer:
    """Return the provider's tracer, cached because creating a tracer takes longer than creating a span."""
    return provider.get_tracer("palermo", VERSION)


@contextmanager
def _current(
    provider: TracerProvider,
    name: str,
    kind: SpanKind,
    attributes: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
) -> Iterator[Span]:
    """Enter a span that is a child of the one in these headers, or of the current one."""
    span: Span = trace.INVALID_SPAN
    token = None
    with _harmless():
        parent = None if headers is None else propagate.extract(headers)
        span = _tracer(provider).start_span(
            name, context=parent, kind=kind, attributes={"messaging.system": "palermo", **attributes}
        )
        token = context.attach(trace.set_span_in_context(span, parent))
    try:
        yield span
    finally:
        with _harmless():
            if token is not None:
                context.detach(token)
            span.end()


def _fail(span: Span, kind: str, message: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR, f"{kind}: {message}")


def current_headers() -> dict[str, str]:
    """Return headers that connect later spans to the current one."""
    headers: dict[str, str] = {}
    with _harmless():
        propagate.inject(headers)
    return headers


class EnqueueSpan:
    """See palermo.tracing.Enqueuing."""

    def __init__(self, span: Span, job: str) -> None:
        """`job` is "" for a span of enqueuing many jobs."""
        self.count = 0
        self._span, self._job = span, job
        self._headers = current_headers()

    def traced(self, message: Message) -> Message:
        with _harmless():
            self.count += 1
            if self._job:
                self._span.set_attributes(_about(message))
        return replace(message, extra={**message.extra, **self._headers}) if self._headers else message


@contextmanager
def enqueue_span(provider: TracerProvider, job: str) -> Iterator[EnqueueSpan]:
    """Enter the span of enqueuing a job, or many if `job` is ""."""
    attributes = {"messaging.operation.name": "enqueue", "messaging.operation.type": "send"}
    if job:
        attributes["palermo.job"] = job
    with _current(provider, f"enqueue {job}" if job else "enqueue_many", SpanKind.PRODUCER, attributes) as span:
        enqueuing = EnqueueSpan(span, job)
        try:
            yield enqueuing
        except BaseException as error:
            with _harmless():
                span.record_exception(error)
                _fail(span, class_name(type(error)), str(error))
            raise
        else:
            with _harmless():
                if job and not enqueuing.count:
                    span.set_attribute("palermo.outcome", "not enqueued")  # rejected by a hook
        finally:
            with _harmless():
                if not job:
                    span.set_attribute("messaging.batch.message_count", enqueuing.count)


class RunSpan:
    """See palermo.tracing.Running."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def ended(self, result: RunResult) -> RunResult:
        with _harmless():
            outcome, failure = _outcome(result)
            self._span.set_attribute("palermo.outcome", outcome)
            if failure is not None:
                attributes = {
                    "exception.type": failure.exception_class,
                    "exception.message": failure.message,
                    "exception.stacktrace": failure.stack_trace,
                }
                self._span.add_event("exception", attributes)
                _fail(self._span, failure.exception_class, failure.message)
        return result


@contextmanager
def run_span(provider: TracerProvider, message: Message, *, worker: str, crashed: bool) -> Iterator[RunSpan]:
    """Enter the span of running a message."""
    attributes = {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.client.id": worker,
        "palermo.job": message.job,
        "palermo.attempt": message.attempt,
        **_about(message),
    }
    if crashed:
        attributes["palermo.crashed"] = True
    # The publisher may have set headers of any type.
    headers = {name: value for name, value in message.extra.items() if isinstance(value, str)}
    name = f"process {message.job or message.queue}"
    with _current(provider, name, SpanKind.CONSUMER, attributes, headers) as span:
        yield RunSpan(span)


def flush_provider(provider: TracerProvider) -> None:
    flush = getattr(provider, "force_flush", None)
    if flush is not None:
        with _harmless():
            flush(_FLUSH_MS)


def _about(message: Message) -> dict[str, Any]:
    return {
        "messaging.destination.name": message.queue,
        "messaging.message.id": message.id,
        "messaging.message.body.size": len(message.body),
    }


def _outcome(result: RunResult) -> tuple[str, Failure | None]:
    """Return the outcome of a run as in the journal, and its failure if it failed."""
    match result:
        case Succeeded(skipped=skipped):
            return "skipped" if skipped else "succeeded", None
        case Raised(failure):
            return "failed", failure
        case Retrying(failure):
            return "snoozed" if failure is None else "retried", failure
        case Dropped():
            return "discarded", None
        case Interrupted():
            return "released", None
        case Cancelled():
            return "cancelled", None
        case BatchResult(results):
            # Show a failure in the span of a batch, because people search for failures.
            outcomes = [_outcome(each) for each in results]
            return next((one for one in outcomes if one[1] is not None), outcomes[0])
