"""The page of all workers, by host, and the orders to them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Form
from starlette.requests import Request
from starlette.responses import Response

from palermo.contract.rows import Row
from palermo.webui import actions
from palermo.webui.render.formats import plural
from palermo.webui.render.rendering import page, path, redirect
from palermo.webui.site import Refused, Visiting
from palermo.webui.state.live_state import live_state, totals_of

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Host:
    """One machine, or container."""

    name: str
    workers: tuple[Row, ...]

    @property
    def slots(self) -> int:
        return sum(worker["slots"] for worker in self.workers)

    @property
    def busy(self) -> int:
        return sum(len(worker["jobs"]) for worker in self.workers)


def by_host(workers: Iterable[Row]) -> list[Host]:
    hosts: dict[str, list[Row]] = {}
    for worker in workers:
        hosts.setdefault(worker["host"], []).append(worker)
    return [Host(name, tuple(sorted(hosts[name], key=lambda row: row["pid"]))) for name in sorted(hosts)]


@router.get("/workers", name="workers")
def workers(request: Request, visit: Visiting) -> Response:
    snapshot = live_state(visit.site).snapshot()
    return page(
        request,
        "workers.html",
        hosts=by_host(snapshot.workers),
        totals=totals_of(snapshot),
        queue_names={row["name"] for row in snapshot.queues},
    )


#: The message after an order, by order.
_DONE = {
    "quiet": "Told {} to take no more jobs.",
    "resume": "Told {} to take jobs again.",
    "stop": "Told {} to finish what it runs, and to end.",
    "kill": "Told {} to kill what it runs, and to end.",
}


@router.post("/workers/{action}", name="control_workers")
def control(request: Request, visit: Visiting, action: str, worker: Annotated[str, Form()] = "") -> Response:
    """Send an order to one worker, or to all."""
    if action not in actions.CONTROL_ROLES:
        raise Refused(404, f"workers do not know {action[:80]!r}.")
    rows = actions.control(visit, [worker] if worker else None, action)
    if action == "stack":
        answers = [(row["worker"], row.get("text", "")) for row in rows if row["answered"]]
        return page(request, "stacks.html", answers=answers)
    silent = sum(not row["answered"] for row in rows)
    text = _DONE[action].format(worker or plural(len(rows), "worker"))
    if silent:
        text += f" No answer yet from {silent if not worker else 'it'}: an order may be obeyed later."
    return redirect(request, path(request, "workers"), text, level="note" if silent else "done")
