"""The pages for people, a module each."""

from palermo.webui.pages import (
    clients,
    failures,
    failures_acting,
    history,
    job,
    live,
    overview,
    queues,
    recurring,
    scheduled,
    scheduled_acting,
    statistics,
    stats,
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
    history.router,
    job.router,
    workers.router,
    clients.router,
    live.router,
    statistics.router,
    stats.router,
)
