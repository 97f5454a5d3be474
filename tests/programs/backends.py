"""Failure back ends: one that is told and then breaks, one that is told, and the log that ships."""

from shop import write

import palermo
from palermo.hooks import log_failure


@palermo.failure_backend
def tracker(report):
    write("tracker", f"{report.id} {report.failure.exception_class}")
    raise ConnectionError("the tracker is down")


@palermo.failure_backend
def pager(report):
    write("pager", f"{report.id} {report.queue} {report.worker}")


palermo.failure_backend(log_failure)
