"""The pages for people, one module each."""

from palermo.webui.pages import (
    failures,
    history,
    job,
    keys,
    live,
    queues,
    recurring,
    scheduled,
    sign_in,
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
    workers.router,
    tenants.router,
    live.router,
    statistics.router,
    sign_in.router,
)
