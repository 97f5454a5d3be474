"""Reports failed jobs to Sentry, without changes to the jobs.

    sentry_sdk.init(dsn=..., integrations=[PalermoIntegration()])

Put this in a module that the worker imports. Each job that goes to `failed` is an event with the exception, the job,
its queue, the attempt, and the breadcrumbs of that run. Each run is a transaction. It continues the trace of the
program that enqueued the job, if that program uses the integration too. A worker's parent runs no user code and sends
nothing.
"""

from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from palermo import tracing
from palermo.contract.extras import extra
from palermo.jobs.current import current_job
from palermo.jobs.definition import JobDefinition
from palermo.jobs.hooks import FailureReport, failure_backend, hook

with extra("sentry", "palermo.contrib.sentry"):
    import sentry_sdk
    from sentry_sdk.integrations import Integration
    from sentry_sdk.scope import Scope, use_isolation_scope
    from sentry_sdk.utils import event_from_exception

#: Maximum seconds for sending a failure before the worker continues, because the slot may then be replaced.
FLUSH_SECONDS = 2.0

#: The headers of a trace.
_TRACE, _BAGGAGE = "sentry-trace", "baggage"

#: The run's scope, needed because failures are reported after the run's hooks have ended.
_scope: ContextVar[Scope | None] = ContextVar("palermo.contrib.sentry", default=None)


class PalermoIntegration(Integration):
    """The integration, for `sentry_sdk.init(integrations=[…])`."""

    identifier = "palermo"
    origin = "auto.queue.palermo"

    @staticmethod
    def setup_once() -> None:
        """Add the hooks and the failure backend."""
        hook(around_process_sentry)
        failure_backend(report_to_sentry)
        tracing.add_header_source(trace_headers)


def around_process_sentry(definition: JobDefinition, /, *args: Any, **kwargs: Any) -> Iterator[None]:
    """Enter a scope and a transaction for the run."""
    job = current_job()
    if job is None or not _is_on():
        yield
        return
    with sentry_sdk.isolation_scope() as scope:
        _scope.set(scope)
        scope.clear_breadcrumbs()
        _describe(scope, id=job.id, job=job.job, queue=job.queue, attempt=job.attempt, worker=job.worker)
        headers = {name: job.headers[name] for name in (_TRACE, _BAGGAGE) if isinstance(job.headers.get(name), str)}
        transaction = sentry_sdk.continue_trace(
            headers, op="queue.process", name=job.job, source="task", origin=PalermoIntegration.origin
        )
        with sentry_sdk.start_transaction(transaction) as span:
            span.set_data("messaging.message.id", job.id)
            span.set_data("messaging.destination.name", job.queue)
            yield


def report_to_sentry(report: FailureReport) -> None:
    """Failure backend that sends an event for a permanently failed job."""
    if report.error is None or not _is_on():
        return
    run = _scope.get()
    with use_isolation_scope(run) if run is not None else sentry_sdk.isolation_scope() as scope:
        _describe(scope, id=report.id, job=report.job, queue=report.queue, attempt=report.attempt, worker=report.worker)
        scope.set_transaction_name(report.job or report.queue, source="task")
        event, hint = event_from_exception(
            report.error,
            client_options=sentry_sdk.get_client().options,
            mechanism={"type": PalermoIntegration.identifier, "handled": False},
        )
        sentry_sdk.capture_event(event, hint=hint)
    sentry_sdk.flush(FLUSH_SECONDS)


def trace_headers() -> Mapping[str, str]:
    """Return headers with which a job's run continues the current trace."""
    if not _is_on():
        return {}
    found = {_TRACE: sentry_sdk.get_traceparent(), _BAGGAGE: sentry_sdk.get_baggage()}
    return {name: value for name, value in found.items() if value}


def _is_on() -> bool:
    return sentry_sdk.get_client().get_integration(PalermoIntegration) is not None


def _describe(scope: Scope, *, id: str, job: str, queue: str, attempt: int, worker: str) -> None:
    # Without the arguments, which may contain confidential data. The job's page shows them.
    scope.set_tag("palermo.job", job)
    scope.set_tag("palermo.queue", queue)
    scope.set_context("palermo", {"id": id, "job": job, "queue": queue, "attempt": attempt, "worker": worker})
