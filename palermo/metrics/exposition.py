"""Renders metrics for scrapers, based on the catalogue and prometheus_client."""

import gzip
import math
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from palermo.core.durations import Durations, upper
from palermo.core.journal_records import RUN_ENDS, RecordKind
from palermo.history.series import Tally
from palermo.metrics.catalogue import COUNTER, GAUGE, HISTOGRAM, INFO, METRICS, Metric

#: The buckets of the journal's histograms whose ends are the bounds of Prometheus's buckets. Each bound is twice the
#: previous one.
_BUCKETS = tuple(range(20, 104, 4))

#: Their upper bounds in seconds as labels, from 3.2 ms to 56 minutes.
BOUNDS = tuple(f"{upper(number):.10g}" for number in _BUCKETS)

_KINDS: Mapping[str, Callable[..., Family]] = {
    GAUGE: GaugeMetricFamily,
    COUNTER: CounterMetricFamily,
    HISTOGRAM: HistogramMetricFamily,
}

#: Minimum size in bytes of an answer that is compressed.
_WORTH_GZIP = 1_400


class Families(Collector):
    """The metrics at one moment. Setting a name that isn't in the catalogue raises KeyError."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._families: dict[str, Any] = {metric.name: _family(metric) for metric in metrics}

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set the value of a gauge or counter."""
        self._families[name].add_metric(labels, value)

    def info(self, name: str, **values: str) -> None:
        """Set text labels about this process."""
        self._families[name].add_metric([], values)

    def histogram(self, name: str, durations: Durations, *labels: str) -> None:
        self._families[name].add_metric(labels, buckets(durations.histogram), durations.sum)

    def collect(self) -> Iterable[Family]:
        """Yield all metric families, for prometheus_client."""
        return self._families.values()

    def tallies(self, tallies: Mapping[tuple[str, str], Tally], *, prefix: str) -> None:
        """Add job tallies as metrics with this prefix."""
        waits: dict[str, Durations] = {}
        for (queue, job), tally in sorted(tallies.items()):
            if f"{prefix}jobs_enqueued_total" in METRICS:
                self.set(f"{prefix}jobs_enqueued_total", tally.number(RecordKind.ENQUEUED), queue, job)
            for outcome in RUN_ENDS:
                self.set(f"{prefix}jobs_processed_total", tally.number(outcome), queue, job, str(outcome))
            if tally.run.count:
                self.histogram(f"{prefix}job_run_seconds", tally.run, queue, job)
            if tally.wait.count:
                waits.setdefault(queue, Durations()).merge(tally.wait)
        for queue, wait in waits.items():
            self.histogram(f"{prefix}job_wait_seconds", wait, queue)


def buckets(histogram: Mapping[int, int]) -> list[tuple[str, float]]:
    """Convert a histogram of palermo.core.durations to Prometheus's form: the number of durations up to each bound."""
    counts = [0] * (len(_BUCKETS) + 1)
    for number, count in histogram.items():
        counts[min(len(_BUCKETS), max(0, math.ceil((number - _BUCKETS[0]) / 4)))] += count
    return list(zip((*BOUNDS, "+Inf"), accumulate(counts), strict=True))


def expose(families: Families, *, accept: str = "", encoding: str = "") -> tuple[bytes, dict[str, str]]:
    """Return the body and headers of an answer, in the format and encoding that the scraper accepts.

    Includes the operating system's data about this process where available.
    """
    registry = CollectorRegistry()
    registry.register(families)
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    body = encode(registry)
    headers = {"content-type": content_type}
    if len(body) > _WORTH_GZIP and "gzip" in encoding:
        headers |= {"content-encoding": "gzip", "vary": "accept-encoding"}
        body = gzip.compress(body, 1)
    return body, headers


def _family(metric: Metric) -> Family:
    if metric.kind == INFO:
        return InfoMetricFamily(metric.name.removesuffix("_info"), metric.help)
    return _KINDS[metric.kind](metric.name, metric.help, labels=metric.labels)
