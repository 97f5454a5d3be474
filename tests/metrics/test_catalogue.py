"""Names that keep Prometheus's conventions (prometheus.io/docs/practices/naming), and nothing counted twice."""

import pytest

from palermo.metrics.catalogue import COUNTER, GAUGE, HISTOGRAM, INFO, METRICS, WEB, WORKER, Metric

#: What a name may end in, by kind: the unit last, in the plural, and "total" for what accumulates.
_ENDS = {
    COUNTER: ("_total",),
    HISTOGRAM: ("_seconds",),
    INFO: ("_info",),
    GAUGE: ("_seconds", "_jobs", "_workers", "_slots", "_busy", "_up", "_paused", "_state"),
}

#: None of those that Prometheus puts on by itself, job and instance.
_LABELS = {"queue", "job_name", "outcome", "state", "worker", "version", "release", "pool"}


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_a_name_says_the_unit_and_what_it_is(metric: Metric) -> None:
    assert metric.name.startswith("palermo_")
    assert metric.name.endswith(_ENDS[metric.kind])
    assert metric.kind == COUNTER or not metric.name.endswith("_total")
    assert metric.kind == INFO or not metric.name.endswith("_info")
    assert metric.help.endswith(".")
    assert set(metric.labels) <= _LABELS


def test_no_two_processes_tell_the_same() -> None:
    assert len(METRICS) == len(WEB) + len(WORKER)
    assert all(metric.name.startswith("palermo_worker_") for metric in WORKER)
    assert not any(metric.name.startswith("palermo_worker_") for metric in WEB)
