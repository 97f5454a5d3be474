"""The pages and the API: a module for each kind of object, whose `router` has its pages and whose `api` has its JSON.

Law: both show the same rows, and each change is an action of webui/actions.py.
"""

from palermo.webui.pages import (
    enqueue,
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
    topics,
    waiting,
    workers,
    workflows,
)

ROUTERS = (
    queues.router,
    enqueue.router,
    waiting.router,
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
    workflows.router,
    live.router,
    statistics.router,
    sign_in.router,
)

#: The API, which returns the same rows as the command line's `--json`, typed.
API = (
    queues.api,
    failures.api,
    failures.operations_api,
    scheduled.api,
    scheduled.retries_api,
    recurring.api,
    topics.api,
    keys.limits_api,
    keys.api,
    workflows.api,
    history.api,
    job.api,
    search.api,
    workers.api,
    problems.api,
    statistics.api,
)
