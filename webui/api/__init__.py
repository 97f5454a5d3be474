"""The API under /api, which returns the same rows as the command line's `--json`, with types."""

from palermo.webui.api import (
    failed,
    history,
    jobs,
    keys,
    problems,
    queues,
    recurring,
    scheduled,
    search,
    stats,
    topics,
    workers,
    workflows,
)

ROUTERS = (
    queues.router,
    failed.router,
    failed.operations_router,
    scheduled.router,
    scheduled.retries_router,
    recurring.router,
    topics.router,
    keys.limits_router,
    keys.router,
    workflows.router,
    history.router,
    jobs.router,
    search.router,
    workers.router,
    problems.router,
    stats.router,
)
