"""The page of all queues."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from palermo.webui import actions
from palermo.webui.rendering import page, path, redirect
from palermo.webui.site import Visiting

router = APIRouter()


@router.get("/queues", name="queues")
def queues(request: Request, visit: Visiting) -> Response:
    return page(request, "queues.html", queues=visit.inspector.queues())


@router.post("/queues/{name:palermo}/purge", name="purge_queue")
def purge(request: Request, visit: Visiting, name: str) -> Response:
    removed = actions.purge(visit, name)
    return redirect(request, path(request, "queues"), f"Removed {removed:,} jobs from {name}.")
