"""Traces: a span for each enqueue and each run, joined by the message's headers, where a program uses OpenTelemetry.

A program does if it has given OpenTelemetry a tracer provider (docs/monitoring.md). In all
others nothing is imported, no header is written, and finding that out costs a look into
`sys.modules`. What OpenTelemetry raises is logged and costs no job anything but its span.
"""

import sys
from typing import TYPE_CHECKING, Any, Protocol, Self

from palermo.core.lifecycle import RunResult
from palermo.core.message import Message

if TYPE_CHECKING:
    from palermo.registry import JobDefinition


class Enqueuing(Protocol):
    """The span of an enqueue, current while it is entered."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *raised: Any) -> None: ...

    def traced(self, message: Message) -> Message:
        """The message with the headers that join its runs to this span."""


class Running(Protocol):
    """The span of a run, current while it is entered: what the job does is below it."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *raised: Any) -> None: ...

    def ended(self, result: RunResult) -> RunResult:
        """Say how the run went; gives the result back."""


class _Untraced:
    """Both of them where nobody traces."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        pass

    def traced(self, message: Message) -> Message:
        return message

    def ended(self, result: RunResult) -> RunResult:
        return result


_UNTRACED = _Untraced()


def enqueuing(job: "JobDefinition | str | None") -> Enqueuing:
    """The span of enqueuing a job; with None, of one call that enqueues any number, of whatever jobs."""
    provider = _provider()
    if provider is None:
        return _UNTRACED
    from palermo.tracing.spans import EnqueueSpan

    return EnqueueSpan(provider, "" if job is None else job if isinstance(job, str) else job.name)


def running(message: Message, *, worker: str, crashed: bool = False) -> Running:
    """The span of running a message in the slot with this tag; `crashed` if it was another process that ran it."""
    provider = _provider()
    if provider is None:
        return _UNTRACED
    from palermo.tracing.spans import RunSpan

    return RunSpan(provider, message, worker=worker, crashed=crashed)


def flush() -> None:
    """Have the spans of this process sent, before it ends without a word. Returns when they are, or cannot be."""
    provider = _provider()
    if provider is not None:
        from palermo.tracing.spans import flush_provider

        flush_provider(provider)


def _provider() -> Any:
    """Where spans go; None if nobody asked for any, or OpenTelemetry is not in use, or only being imported."""
    api = sys.modules.get("opentelemetry.trace")
    find = getattr(api, "get_tracer_provider", None)
    if api is None or find is None:
        return None
    provider = find()
    return None if isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider) else provider
