"""The public names for hooks (docs/guides/hooks.md)."""

from palermo.jobs.definition import JobDefinition
from palermo.jobs.hooks import (
    HOOKS,
    DontEnqueue,
    DontProcess,
    FailureReport,
    WorkerContext,
    failure_backend,
    hook,
    log_failure,
)

__all__ = [
    "HOOKS",
    "DontEnqueue",
    "DontProcess",
    "FailureReport",
    "JobDefinition",
    "WorkerContext",
    "failure_backend",
    "hook",
    "log_failure",
]
