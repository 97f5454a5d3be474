"""The pages for people, one module each."""

from palermo.webui.pages import (
    failures,
    history,
    job,
    job_classes,
    keys,
    live,
    problems,
    queues,
    recurring,
    scheduled,
    search,
    sign_in,
    statistics,
    tenants,
    topics,
    workers,
)

ROUTERS = (
    queues.router,
    search.router,
    failures.router,
    scheduled.router,
    recurring.router,
    topics.router,
    keys.router,
    history.router,
    job.router,
    job_classes.router,
    workers.router,
    problems.router,
    tenants.router,
    live.router,
    statistics.router,
    sign_in.router,
)
