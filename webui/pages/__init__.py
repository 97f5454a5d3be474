"""The pages for people, a module each."""

from palermo.webui.pages import (
    failures,
    failures_acting,
    history,
    job,
    limits,
    live,
    overview,
    queues,
    recurring,
    scheduled,
    scheduled_acting,
    statistics,
    stats,
    topics,
    unique,
    workers,
)

ROUTERS = (
    overview.router,
    queues.router,
    failures.router,
    failures_acting.router,
    scheduled.router,
    scheduled_acting.router,
    recurring.router,
    topics.router,
    limits.router,
    unique.router,
    history.router,
    job.router,
    workers.router,
    live.router,
    statistics.router,
    stats.router,
)
