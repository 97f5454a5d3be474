"""Every metric there is: its name, kind and labels. docs/guides/monitoring.md has the same table, and a test compares.

The web process reports on the whole system, a worker on itself. No name is used by both, so that no sum
counts anything twice. A job's name is the label `job_name`, because Prometheus itself uses `job` for a
group of targets: it would rename a label `job` of Palermo to exported_job.
"""

from collections.abc import Mapping

from msgspec import Struct

GAUGE, COUNTER, HISTOGRAM, INFO = "gauge", "counter", "histogram", "info"


class Metric(Struct, frozen=True):
    """One line of the catalogue."""

    #: The name in PromQL; a histogram's without _bucket, _sum and _count.
    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


_OUTCOME = ("queue", "job_name", "outcome")

#: The metrics of the web process.
WEB: tuple[Metric, ...] = (
    Metric("palermo_info", INFO, "The version of the web process.", ("version",)),
    Metric("palermo_broker_up", GAUGE, "Whether the broker answers: 1, or 0, and then what it would tell is missing."),
    Metric("palermo_queue_pending_jobs", GAUGE, "Jobs that wait in a queue and could be run now.", ("queue",)),
    Metric("palermo_queue_running_jobs", GAUGE, "Jobs of a queue that workers hold.", ("queue",)),
    Metric(
        "palermo_queue_oldest_age_seconds",
        GAUGE,
        "Seconds that the first job in a queue has waited; missing where nobody may look.",
        ("queue",),
    ),
    Metric("palermo_queue_workers", GAUGE, "Workers that serve a queue.", ("queue",)),
    Metric("palermo_queue_paused", GAUGE, "Whether a queue is paused.", ("queue",)),
    Metric("palermo_failed_jobs", GAUGE, "Jobs that lie in a queue of failed jobs.", ("queue",)),
    Metric("palermo_workers", GAUGE, "Workers that live, by what they do.", ("state",)),
    Metric("palermo_slots", GAUGE, "Jobs that all workers together can run at a time."),
    Metric("palermo_slots_busy", GAUGE, "Slots that run a job."),
    Metric("palermo_jobs_enqueued_total", COUNTER, "Jobs that clients enqueued.", ("queue", "job_name")),
    Metric("palermo_jobs_processed_total", COUNTER, "Runs that ended, by how.", _OUTCOME),
    Metric("palermo_job_run_seconds", HISTOGRAM, "How long runs took.", ("queue", "job_name")),
    Metric("palermo_job_wait_seconds", HISTOGRAM, "How long jobs waited from when they could be run.", ("queue",)),
    Metric("palermo_journal_up", GAUGE, "Whether the journal is read, of which totals are made; missing if it is off."),
    Metric("palermo_journal_lost_records_total", COUNTER, "Records left out while the journal could not be written."),
)

#: The metrics of a worker, about itself alone.
WORKER: tuple[Metric, ...] = (
    Metric("palermo_worker_info", INFO, "Which worker this is.", ("worker", "version", "release", "pool")),
    Metric("palermo_worker_start_time_seconds", GAUGE, "Unix time at which it started."),
    Metric("palermo_worker_broker_up", GAUGE, "Whether its session with the broker is open."),
    Metric("palermo_worker_state", GAUGE, "1 for what it does, 0 for all else that it might.", ("state",)),
    Metric("palermo_worker_slots", GAUGE, "Jobs that it can run at a time."),
    Metric("palermo_worker_slots_busy", GAUGE, "Slots that run a job."),
    Metric("palermo_worker_jobs_processed_total", COUNTER, "Runs that ended, by how.", _OUTCOME),
    Metric("palermo_worker_job_run_seconds", HISTOGRAM, "How long runs took.", ("queue", "job_name")),
    Metric("palermo_worker_job_wait_seconds", HISTOGRAM, "How long jobs waited before they were run.", ("queue",)),
)

#: All metrics, by name.
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in (*WEB, *WORKER)}
