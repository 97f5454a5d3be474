"""OpenTelemetry spans, with the attributes of its conventions for messaging and some of Palermo's own."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import Token
from functools import lru_cache
from types import TracebackType
from typing import Any, Self

from msgspec.structs import replace
from opentelemetry import context, propagate, trace
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, TracerProvider

from palermo.core.failure import Failure, class_name
from palermo.core.lifecycle import BatchResult, Cancelled, Dropped, Interrupted, Raised, Retrying, RunResult, Succeeded
from palermo.core.message import Message
from palermo.core.version import VERSION

log = logging.getLogger("palermo.tracing")

#: Milliseconds that sending the last spans may take, where the provider respects that.
_FLUSH_MS = 2_000

_SYSTEM = {"messaging.system": "palermo"}


@contextmanager
def _harmless() -> Iterator[None]:
    """Log what exporters, samplers and propagators of others raise: no job may be lost or refused for them."""
    try:
        yield
    except Exception:
        log.exception("tracing failed, going on without")


@lru_cache(maxsize=4)
def _tracer(provider: TracerProvider) -> Tracer:
    """The tracer of a provider, made once, since that takes longer than a span."""
    return provider.get_tracer("palermo", VERSION)


class _Current:
    """A span that is current from entering to leaving."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._span: Span = trace.INVALID_SPAN
        self._token: Token[context.Context] | None = None

    def _begin(
        self, name: str, kind: SpanKind, attributes: Mapping[str, Any], parent: context.Context | None = None
    ) -> None:
        self._span = _tracer(self._provider).start_span(
            name, context=parent, kind=kind, attributes={**_SYSTEM, **attributes}
        )
        self._token = context.attach(trace.set_span_in_context(self._span, parent))

    def _end(self) -> None:
        token, self._token = self._token, None
        if token is not None:
            context.detach(token)
        self._span.end()


class EnqueueSpan(_Current):
    """See palermo.tracing.Enqueuing."""

    def __init__(self, provider: TracerProvider, job: str) -> None:
        """Without a job (""), the span is for many."""
        super().__init__(provider)
        self._job = job
        self._headers: dict[str, str] = {}
        self._count = 0

    def __enter__(self) -> Self:
        attributes = {"messaging.operation.name": "enqueue", "messaging.operation.type": "send"}
        if self._job:
            attributes["palermo.job"] = self._job
        with _harmless():
            self._begin(f"enqueue {self._job}" if self._job else "enqueue_many", SpanKind.PRODUCER, attributes)
            propagate.inject(self._headers)
        return self

    def traced(self, message: Message) -> Message:
        with _harmless():
            self._count += 1
            if self._job:
                self._span.set_attributes(_about(message))
        return replace(message, extra={**message.extra, **self._headers}) if self._headers else message

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _harmless():
            if not self._job:
                self._span.set_attribute("messaging.batch.message_count", self._count)
            elif not self._count and error is None:
                self._span.set_attribute("palermo.outcome", "not enqueued")  # by a hook
            if error is not None:
                self._span.record_exception(error)
                self._span.set_attribute("error.type", class_name(type(error)))
                self._span.set_status(StatusCode.ERROR, f"{class_name(type(error))}: {error}")
            self._end()


class RunSpan(_Current):
    """See palermo.tracing.Running."""

    def __init__(self, provider: TracerProvider, message: Message, *, worker: str, crashed: bool) -> None:
        super().__init__(provider)
        self._message = message
        self._worker = worker
        self._crashed = crashed

    def __enter__(self) -> Self:
        message = self._message
        attributes = {
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.client.id": self._worker,
            "palermo.job": message.job,
            "palermo.attempt": message.attempt,
            **_about(message),
        }
        if self._crashed:
            attributes["palermo.crashed"] = True
        with _harmless():
            # The publisher may have put anything there.
            headers = {name: value for name, value in message.extra.items() if isinstance(value, str)}
            parent = propagate.extract(headers)
            self._begin(f"process {message.job or message.queue}", SpanKind.CONSUMER, attributes, parent)
        return self

    def ended(self, result: RunResult) -> RunResult:
        with _harmless():
            outcome, failure = _outcome(result)
            self._span.set_attribute("palermo.outcome", outcome)
            if failure is not None:
                self._blame(failure)
        return result

    def _blame(self, failure: Failure) -> None:
        attributes = {
            "exception.type": failure.exception_class,
            "exception.message": failure.message,
            "exception.stacktrace": failure.stack_trace,
        }
        self._span.add_event("exception", attributes)
        self._span.set_attribute("error.type", failure.exception_class)
        self._span.set_status(StatusCode.ERROR, f"{failure.exception_class}: {failure.message}")

    def __exit__(self, *raised: object) -> None:
        with _harmless():
            self._end()


def flush_provider(provider: TracerProvider) -> None:
    """Have the provider send the spans that it holds, if it can be told to."""
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
    """The outcome of a run in the journal's words, and the failure if it is one."""
    match result:
        case Succeeded(skipped=True):
            return "skipped", None
        case Succeeded():
            return "succeeded", None
        case Raised(failure):
            return "failed", failure
        case Retrying(None):
            return "snoozed", None
        case Retrying(failure):
            return "retried", failure
        case Dropped():
            return "discarded", None
        case Interrupted():
            return "released", None
        case Cancelled():
            return "cancelled", None
        case BatchResult(results):
            # The span of a batch shows a failure if there is one, since people look for failures.
            outcomes = [_outcome(each) for each in results]
            return next((one for one in outcomes if one[1] is not None), outcomes[0])
