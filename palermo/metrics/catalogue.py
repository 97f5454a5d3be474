"""The name, kind, labels and meaning of every metric. The tables in docs/guides/monitoring.md are generated from it.

The web process reports on the whole system, and a worker on itself. Their names differ, so that no sum counts anything
twice. A job's name is in the label `job_name`, because Prometheus uses `job` for a group of targets and would rename
our label to exported_job.
"""

from collections.abc import Mapping

from msgspec import Struct

GAUGE, COUNTER, HISTOGRAM, INFO = "gauge", "counter", "histogram", "info"


class Metric(Struct, frozen=True):
    #: The name in PromQL, without the _bucket, _sum and _count of a histogram.
    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


_OUTCOME = ("queue", "job_name", "outcome")

WEB: tuple[Metric, ...] = (
    Metric("palermo_info", INFO, "The version of the web process.", ("version",)),
    Metric(
        "palermo_broker_up",
        GAUGE,
        "1 if the broker answers, otherwise 0. If it is 0, the broker's metrics are missing.",
    ),
    Metric("palermo_queue_pending_jobs", GAUGE, "Jobs in a queue that could run now.", ("queue",)),
    Metric("palermo_queue_running_jobs", GAUGE, "Jobs of a queue that workers hold.", ("queue",)),
    Metric(
        "palermo_queue_oldest_age_seconds",
        GAUGE,
        "Seconds that the first job in a queue has waited. Missing for queues that can't be read, such as quorum"
        " queues.",
        ("queue",),
    ),
    Metric("palermo_queue_workers", GAUGE, "Workers that serve a queue.", ("queue",)),
    Metric("palermo_queue_paused", GAUGE, "Whether a queue is paused.", ("queue",)),
    Metric("palermo_failed_jobs", GAUGE, "Jobs in a failed queue.", ("queue",)),
    Metric(
        "palermo_workflows",
        GAUGE,
        "Workflows that are running, or have failed and can be retried, by state.",
        ("state",),
    ),
    Metric("palermo_workflow_jobs", GAUGE, "Jobs of workflows that are waiting in a queue or running."),
    Metric("palermo_workers", GAUGE, "Live workers, by state.", ("state",)),
    Metric("palermo_slots", GAUGE, "Slots of all workers."),
    Metric("palermo_slots_busy", GAUGE, "Slots that are running a job."),
    Metric("palermo_jobs_enqueued_total", COUNTER, "Jobs that clients enqueued.", ("queue", "job_name")),
    Metric("palermo_jobs_processed_total", COUNTER, "Runs that ended, by outcome.", _OUTCOME),
    Metric("palermo_job_run_seconds", HISTOGRAM, "Seconds from the start of a run to its end.", ("queue", "job_name")),
    Metric("palermo_job_wait_seconds", HISTOGRAM, "Seconds that ready jobs waited to start.", ("queue",)),
    Metric("palermo_journal_up", GAUGE, "1 if the journal, the source of totals, can be read. Missing if it is off."),
    Metric("palermo_journal_lost_records_total", COUNTER, "Records dropped while the journal could not be written."),
)

WORKER: tuple[Metric, ...] = (
    Metric("palermo_worker_info", INFO, "Id of this worker.", ("worker", "version", "release", "pool")),
    Metric("palermo_worker_start_time_seconds", GAUGE, "Unix time of its start."),
    Metric("palermo_worker_broker_up", GAUGE, "Whether its session with the broker is open."),
    Metric("palermo_worker_state", GAUGE, "1 for its current state, 0 for all others.", ("state",)),
    Metric("palermo_worker_slots", GAUGE, "Its slots."),
    Metric("palermo_worker_slots_busy", GAUGE, "Slots that are running a job."),
    Metric("palermo_worker_jobs_processed_total", COUNTER, "Runs that ended, by outcome.", _OUTCOME),
    Metric(
        "palermo_worker_job_run_seconds",
        HISTOGRAM,
        "Seconds from the start of a run to its end.",
        ("queue", "job_name"),
    ),
    Metric("palermo_worker_job_wait_seconds", HISTOGRAM, "Seconds that ready jobs waited to start.", ("queue",)),
)

METRICS: Mapping[str, Metric] = {metric.name: metric for metric in (*WEB, *WORKER)}
