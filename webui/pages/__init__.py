"""The pages for people, a module each."""

from palermo.webui.pages import job, live, overview, queues, workers

ROUTERS = (overview.router, queues.router, job.router, workers.router, live.router)
