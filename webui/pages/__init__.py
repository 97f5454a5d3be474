"""The pages for people, one module each."""

from palermo.webui.pages import (
    failures,
    history,
    job,
    job_classes,
    keys,
    live,
    queues,
    recurring,
    scheduled,
    statistics,
    tenants,
    topics,
    workers,
)

ROUTERS = (
    queues.router,
    failures.router,
    scheduled.router,
    recurring.router,
    topics.router,
    keys.router,
    history.router,
    job.router,
    job_classes.router,
    workers.router,
    tenants.router,
    live.router,
    statistics.router,
)
