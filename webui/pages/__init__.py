"""The pages for people, a module each."""

from palermo.webui.pages import queues

ROUTERS = (queues.router,)
