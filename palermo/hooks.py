"""Hooks, as programs import them (docs/guides/hooks.md)."""

from palermo.jobs.failure_backends import FailureReport, failure_backend, log_failure
from palermo.jobs.hooks import HOOKS, DontEnqueue, DontProcess, WorkerContext, hook

__all__ = [
    "HOOKS",
    "DontEnqueue",
    "DontProcess",
    "FailureReport",
    "WorkerContext",
    "failure_backend",
    "hook",
    "log_failure",
]
