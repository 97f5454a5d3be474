"""The names that a program imports from Palermo, in the order in which the reference describes them."""

from typing import Any

import palermo
from palermo.client.decorator import FunctionJob
from palermo.contract import row_types
from palermo.inspector.events import Events
from palermo.inspector.failed import FailedJobs
from palermo.inspector.history import History
from palermo.inspector.jobs import Jobs
from palermo.inspector.keys import Keys
from palermo.inspector.queues import Queues
from palermo.inspector.recurring import RecurringJobs
from palermo.inspector.scheduled import ScheduledJobs
from palermo.inspector.tenants import Tenants
from palermo.inspector.workers import Workers
from palermo.inspector.workflows import Workflows
from palermo.jobs.current import CurrentJob
from palermo.jobs.hooks import FailureReport, WorkerContext
from palermo.worker.handle import WorkerHandle

#: The parts of the API: a title, a sentence, and the names that a program imports, with the objects.
PARTS: list[tuple[str, str, list[tuple[str, Any]]]] = [
    (
        "Declare",
        "Names for modules that declare jobs.",
        [
            ("palermo.job", palermo.job),
            ("palermo.JobClass", palermo.JobClass),
            ("palermo.Batch", palermo.Batch),
            ("palermo.subscribe", palermo.subscribe),
            ("palermo.workflow", palermo.workflow),
            ("palermo.Workflow", palermo.Workflow),
            ("palermo.Step", palermo.Step),
            ("palermo.hook", palermo.hook),
            ("palermo.DontEnqueue", palermo.DontEnqueue),
            ("palermo.DontProcess", palermo.DontProcess),
            ("palermo.hooks.WorkerContext", WorkerContext),
            ("palermo.failure_backend", palermo.failure_backend),
            ("palermo.hooks.FailureReport", FailureReport),
            ("palermo.Fixed", palermo.Fixed),
            ("palermo.Linear", palermo.Linear),
            ("palermo.Exponential", palermo.Exponential),
        ],
    ),
    (
        "Enqueue",
        "Decorated functions and classes, and the results of `options()`, have the methods of the first entry.",
        [
            ("a job", FunctionJob),
            ("palermo.enqueue", palermo.enqueue),
            ("palermo.publish", palermo.publish),
            ("palermo.connect", palermo.connect),
            ("palermo.Client", palermo.Client),
        ],
    ),
    (
        "Follow a job",
        "Each enqueue returns a `Job`.",
        [
            ("palermo.Job", palermo.Job),
            ("palermo.Conflict", palermo.Conflict),
            ("palermo.job_by_id", palermo.job_by_id),
            ("palermo.JobStatus", palermo.JobStatus),
        ],
    ),
    (
        "Inside a job",
        "Functions that a running job calls, and exceptions that end it.",
        [
            ("palermo.current_job", palermo.current_job),
            ("palermo.jobs.current.CurrentJob", CurrentJob),
            ("palermo.resume", palermo.resume),
            ("palermo.track", palermo.track),
            ("palermo.Retry", palermo.Retry),
            ("palermo.Snooze", palermo.Snooze),
            ("palermo.Discard", palermo.Discard),
        ],
    ),
    (
        "Inspect and change",
        "The inspector has the operations of the commands and the web pages.",
        [
            ("palermo.inspector", vars(palermo)["_inspector"]),
            ("palermo.Inspector", palermo.Inspector),
            ("inspector.queues", Queues),
            ("inspector.jobs", Jobs),
            ("inspector.failed", FailedJobs),
            ("inspector.scheduled", ScheduledJobs),
            ("inspector.recurring", RecurringJobs),
            ("inspector.workers", Workers),
            ("inspector.tenants", Tenants),
            ("inspector.keys", Keys),
            ("inspector.events", Events),
            ("inspector.history", History),
            ("inspector.workflows", Workflows),
            ("palermo.JobFilter", palermo.JobFilter),
            ("palermo.AuditFilter", palermo.AuditFilter),
            ("palermo.Listing", palermo.Listing),
            ("palermo.QueueRow", palermo.QueueRow),
            ("palermo.JobRow", palermo.JobRow),
            ("palermo.WorkerRow", palermo.WorkerRow),
            *(
                (f"{row.__module__}.{row.__name__}", row)
                for row in (
                    *(row_types.RunningRow, row_types.AlteredRow, row_types.RecurringRow, row_types.TenantRow),
                    *(row_types.KeyRow, row_types.LimitRow, row_types.FinishedRow, row_types.ActionRow),
                    *(row_types.TopicRow, row_types.StatisticsRow, row_types.CountsRow, row_types.TimesRow),
                )
            ),
        ],
    ),
    (
        "Start workers",
        "A program can start workers as separate processes.",
        [
            ("palermo.start_worker", palermo.start_worker),
            ("palermo.worker.handle.WorkerHandle", WorkerHandle),
        ],
    ),
]
