"""The text that is written for scrapers can be read by their own parsers."""

import gzip
import itertools

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from palermo.core.durations import bucket, upper
from palermo.core.journal_records import RUN_ENDS, RecordKind
from palermo.history.series import Tally
from palermo.metrics.catalogue import WEB
from palermo.metrics.exposition import BOUNDS, Families, buckets, expose
from palermo.metrics.totals import Totals
from tests.metrics.scraping import Scraped


def families() -> Families:
    totals = Totals()
    totals.count(RecordKind.SUCCEEDED, 'a "quoted"\\queue\n', "send", 0.5, 0.002)
    totals.count(RecordKind.SUCCEEDED, 'a "quoted"\\queue\n', "send", 0.5, 5_000.0)
    totals.count(RecordKind.RETRIED, "mail", "send", None, 1.0)
    made = Families(WEB)
    made.info("palermo_info", version="1.2.3")
    made.set("palermo_queue_pending_jobs", 7, "mail")
    made.tallies({**totals.copy(), ("idle", "never"): Tally()}, prefix="palermo_")
    return made


def test_values_and_names_survive_the_format() -> None:
    body, headers = expose(families())
    found = Scraped(body.decode())

    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    assert found.value("palermo_info", version="1.2.3") == 1
    assert found.value("palermo_queue_pending_jobs", queue="mail") == 7
    quoted = {"queue": 'a "quoted"\\queue\n', "job_name": "send"}
    assert found.value("palermo_jobs_processed_total", outcome="succeeded", **quoted) == 2
    assert found.value("palermo_job_run_seconds_bucket", le="0.0032", **quoted) == 1
    assert found.value("palermo_job_run_seconds_bucket", le=BOUNDS[-1], **quoted) == 1
    assert found.value("palermo_job_run_seconds_bucket", le="+Inf", **quoted) == 2
    assert found.value("palermo_job_run_seconds_sum", **quoted) == 5_000.002
    assert found.value("palermo_job_wait_seconds_count", queue=quoted["queue"]) == 2
    for outcome in RUN_ENDS:  # also of a job that is known and has not run yet
        assert found.value("palermo_jobs_processed_total", queue="idle", job_name="never", outcome=str(outcome)) == 0


def test_it_is_openmetrics_or_compressed_where_that_is_asked_for() -> None:
    body, headers = expose(families(), accept="application/openmetrics-text; version=1.0.0")
    compressed, encoded = expose(families(), encoding="gzip, deflate")

    assert headers["content-type"].startswith("application/openmetrics-text")
    told = {family.name for family in openmetrics.text_string_to_metric_families(body.decode())}
    assert told >= {"palermo_jobs_processed", "palermo_job_run_seconds"}
    assert encoded["content-encoding"] == "gzip"
    assert list(text_string_to_metric_families(gzip.decompress(compressed).decode()))


@pytest.mark.parametrize("seconds", [0.0, 0.0001, 0.0032, 0.003_201, 0.0064, 1.0, 1.6384, 1.64, 3_355.0, 1e9])
def test_a_duration_is_in_every_bucket_whose_bound_it_does_not_exceed(seconds: float) -> None:
    found = buckets({bucket(seconds): 1})

    assert [float(bound) for bound, count in found if count] == [
        float(bound) for bound in (*BOUNDS, "+Inf") if float(bound) >= seconds * (1 - 1e-9)
    ]
    # Bounds double, and are ends of the journal's own buckets.
    bounds = [float(bound) for bound in BOUNDS]
    assert all(later == pytest.approx(2 * earlier) for earlier, later in itertools.pairwise(bounds))
    assert all(upper(bucket(bound)) == pytest.approx(bound) for bound in bounds)
