"""Tracing with OpenTelemetry: a span for each enqueue and each run, connected by message headers.

Other tracers, such as Sentry's, add headers with `add_header_source` and read them from `current_job().headers` in
their hooks.

A program is traced if it has set an OpenTelemetry tracer provider (docs/guides/monitoring.md). Otherwise nothing is
imported and no header is written; the check only reads `sys.modules`. If OpenTelemetry raises an error, it is logged,
and the job only loses its span.
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from palermo.core.lifecycle import RunResult
from palermo.core.message import Message

if TYPE_CHECKING:
    from palermo.jobs.definition import JobDefinition


class Enqueuing(Protocol):
    def traced(self, message: Message) -> Message:
        """Return the message with headers that connect its runs to this span."""


class Running(Protocol):
    """The span of a run."""

    def ended(self, result: RunResult) -> RunResult:
        """Record the result of the run, and return it."""


_UNTRACED = nullcontext[None]()

#: Functions that return headers for messages enqueued in the current context.
_header_sources: list[Callable[[], Mapping[str, str]]] = []


def add_header_source(function: Callable[[], Mapping[str, str]]) -> None:
    """Add a function that returns headers for each enqueue not traced by OpenTelemetry. It must not raise."""
    if function not in _header_sources:
        _header_sources.append(function)


class _WithHeaders:
    """An enqueue that is traced only by other tracers."""

    def traced(self, message: Message) -> Message:
        headers = trace_headers()
        return replace(message, extra={**message.extra, **headers}) if headers else message


_WITH_HEADERS = nullcontext(_WithHeaders())


def enqueuing(job: "JobDefinition | str | None") -> AbstractContextManager[Enqueuing | None]:
    """Return a context with the span of enqueuing a job; `job` is None for a call that enqueues many.

    The context's value is None if nothing is traced.
    """
    provider = _provider()
    if provider is None:
        return _WITH_HEADERS if _header_sources else _UNTRACED
    from palermo.tracing.spans import enqueue_span

    return enqueue_span(provider, "" if job is None else job if isinstance(job, str) else job.name)


def trace_headers() -> dict[str, str]:
    """Return headers that connect the runs of later messages to the current span; empty if nothing is traced."""
    provider = _provider()
    if provider is None:
        return {name: value for function in _header_sources for name, value in function().items()}
    from palermo.tracing.spans import current_headers

    return current_headers()


def running(message: Message, *, worker: str, crashed: bool = False) -> AbstractContextManager[Running | None]:
    """Return a context with the span of running a message in a slot.

    `crashed` is whether it ran in another process, which died. Spans of the job become its children. The context's
    value is None if nothing is traced.
    """
    provider = _provider()
    if provider is None:
        return _UNTRACED
    from palermo.tracing.spans import run_span

    return run_span(provider, message, worker=worker, crashed=crashed)


def flush() -> None:
    """Send the remaining spans before the process exits abruptly. Returns once they are sent, or that failed."""
    provider = _provider()
    if provider is not None:
        from palermo.tracing.spans import flush_provider

        flush_provider(provider)


def _provider() -> Any:
    """Return the tracer provider; None if none is set, or OpenTelemetry isn't imported or only partly."""
    api = sys.modules.get("opentelemetry.trace")
    find = getattr(api, "get_tracer_provider", None)
    if api is None or find is None:
        return None
    provider = find()
    return None if isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider) else provider
