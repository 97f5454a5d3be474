"""Traces with OpenTelemetry: a span for each enqueue and each run, joined by the message's headers.

Another tracer, such as Sentry's, adds headers by `add_header_source`. Its hooks read them in `current_job().headers`.

A program is traced if it has given OpenTelemetry a tracer provider (docs/guides/monitoring.md). In all
other programs nothing is imported and no header is written; the check costs a look into
`sys.modules`. An error in OpenTelemetry is logged, and costs a job nothing but its span.
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
    """The span of an enqueue."""

    def traced(self, message: Message) -> Message:
        """The message with the headers that join its runs to this span."""


class Running(Protocol):
    """The span of a run."""

    def ended(self, result: RunResult) -> RunResult:
        """Record how the run went; returns the result."""


_UNTRACED = nullcontext[None]()

#: Functions that return headers for the messages of the context that enqueues.
_header_sources: list[Callable[[], Mapping[str, str]]] = []


def add_header_source(function: Callable[[], Mapping[str, str]]) -> None:
    """Call this function for headers at each enqueue, unless OpenTelemetry traces it. It must not raise."""
    if function not in _header_sources:
        _header_sources.append(function)


class _WithHeaders:
    """The span of an enqueue that only other tracers have."""

    def traced(self, message: Message) -> Message:
        headers = trace_headers()
        return replace(message, extra={**message.extra, **headers}) if headers else message


_WITH_HEADERS = nullcontext(_WithHeaders())


def enqueuing(job: "JobDefinition | str | None") -> AbstractContextManager[Enqueuing | None]:
    """Enter the span of enqueuing a job; with None, of one call that enqueues any number of jobs.

    The span is current inside. None if nothing is traced.
    """
    provider = _provider()
    if provider is None:
        return _WITH_HEADERS if _header_sources else _UNTRACED
    from palermo.tracing.spans import enqueue_span

    return enqueue_span(provider, "" if job is None else job if isinstance(job, str) else job.name)


def trace_headers() -> dict[str, str]:
    """The headers that join runs of later messages to the current span; empty if nothing is traced."""
    provider = _provider()
    if provider is None:
        return {name: value for function in _header_sources for name, value in function().items()}
    from palermo.tracing.spans import current_headers

    return current_headers()


def running(message: Message, *, worker: str, crashed: bool = False) -> AbstractContextManager[Running | None]:
    """Enter the span of running a message in the slot with this tag; `crashed` if another process ran it.

    The span is current inside, so spans of the job are below it. None if nothing is traced.
    """
    provider = _provider()
    if provider is None:
        return _UNTRACED
    from palermo.tracing.spans import run_span

    return run_span(provider, message, worker=worker, crashed=crashed)


def flush() -> None:
    """Send the spans of this process before it ends abruptly. Returns once they are sent, or cannot be."""
    provider = _provider()
    if provider is not None:
        from palermo.tracing.spans import flush_provider

        flush_provider(provider)


def _provider() -> Any:
    """The tracer provider; None if the program set none, or OpenTelemetry is not in use, or only being imported."""
    api = sys.modules.get("opentelemetry.trace")
    find = getattr(api, "get_tracer_provider", None)
    if api is None or find is None:
        return None
    provider = find()
    return None if isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider) else provider
