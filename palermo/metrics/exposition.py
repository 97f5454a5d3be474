"""Metrics as a scraper reads them: built by name from the catalogue, written by prometheus_client."""

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

from palermo.core.durations import Durations
from palermo.core.histogram import upper
from palermo.core.journal import ENDS, Kind
from palermo.history.tally import Tally
from palermo.metrics.catalogue import COUNTER, GAUGE, HISTOGRAM, INFO, METRICS, Metric

#: The buckets of the journal's histograms at which ours end, exactly: each twice as long as the one before.
_BUCKETS = tuple(range(20, 104, 4))

#: The same in seconds, 3.2 ms to 56 minutes, as labels.
BOUNDS = tuple(f"{upper(number):.10g}" for number in _BUCKETS)

_KINDS: Mapping[str, Callable[..., Family]] = {
    GAUGE: GaugeMetricFamily,
    COUNTER: CounterMetricFamily,
    HISTOGRAM: HistogramMetricFamily,
}

#: Smaller answers are not worth compressing.
_WORTH_GZIP = 1_400


class Families(Collector):
    """The metrics of one moment; a name that the catalogue has not is a KeyError."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._families: dict[str, Any] = {metric.name: _family(metric) for metric in metrics}

    def set(self, name: str, value: float, *labels: str) -> None:
        """The value of a gauge or counter."""
        self._families[name].add_metric(labels, value)

    def info(self, name: str, **values: str) -> None:
        """Texts about this process."""
        self._families[name].add_metric([], values)

    def histogram(self, name: str, durations: Durations, *labels: str) -> None:
        """What is known of durations."""
        self._families[name].add_metric(labels, buckets(durations.histogram), durations.sum)

    def collect(self) -> Iterable[Family]:
        """For prometheus_client."""
        return self._families.values()

    def tallies(self, tallies: Mapping[tuple[str, str], Tally], *, prefix: str) -> None:
        """What jobs did, as the metrics of this prefix."""
        waits: dict[str, Durations] = {}
        for (queue, job), tally in sorted(tallies.items()):
            if f"{prefix}jobs_enqueued_total" in METRICS:
                self.set(f"{prefix}jobs_enqueued_total", tally.number(Kind.ENQUEUED), queue, job)
            for outcome in ENDS:
                self.set(f"{prefix}jobs_processed_total", tally.number(outcome), queue, job, str(outcome))
            if tally.run.count:
                self.histogram(f"{prefix}job_run_seconds", tally.run, queue, job)
            if tally.wait.count:
                waits.setdefault(queue, Durations()).merge(tally.wait)
        for queue, wait in waits.items():
            self.histogram(f"{prefix}job_wait_seconds", wait, queue)


def buckets(histogram: Mapping[int, int]) -> list[tuple[str, float]]:
    """A histogram of palermo.core.histogram as one of Prometheus: so many durations up to each bound."""
    counts = [0] * (len(_BUCKETS) + 1)
    for number, count in histogram.items():
        counts[min(len(_BUCKETS), max(0, math.ceil((number - _BUCKETS[0]) / 4)))] += count
    return list(zip((*BOUNDS, "+Inf"), accumulate(counts), strict=True))


def expose(families: Families, *, accept: str = "", encoding: str = "") -> tuple[bytes, dict[str, str]]:
    """The body and the headers of an answer, for a scraper whose headers accept this type and this encoding.

    With what the operating system knows of this process, where it tells.
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
