"""The API: the same rows as the command line's `--json`, typed, under /api."""

from palermo.webui.api import queues

ROUTERS = (queues.router,)
