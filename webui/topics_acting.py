"""What can be done about events from the web, for pages and API alike; see actions.py."""

import threading
import time
from concurrent import futures
from concurrent.futures import Future

from palermo.errors import NotFound
from palermo.inspector import Inspector
from palermo.webui import audit
from palermo.webui.actions import acting
from palermo.webui.people import Role
from palermo.webui.site import Visit
from palermo.webui.wired import wired

#: How far back old events are told: by name, in words, and in seconds; None for all that are kept.
AGES: dict[str, tuple[str, float | None]] = {
    "hour": ("of the last hour", 3_600.0),
    "day": ("of the last day", 86_400.0),
    "week": ("of the last week", 7 * 86_400.0),
    "all": ("all that are kept", None),
}


def replay(
    visit: Visit, group: str, *, topic: str | None = None, age: float | None = None, wait: float = 5.0
) -> int | None:
    """Tell the events of the last `age` seconds to a group again; how many, None if it goes on after `wait` seconds.

    Raises NotFound, TopicInvalid, BrokerRefused.
    """
    since = None if age is None else time.time() - age
    # Not that of the visit, which asks nothing that takes longer than enqueuing a job may.
    inspector = Inspector(visit.site.client, visit.actor)
    done: Future[int] = Future()

    def run() -> None:
        try:
            done.set_result(inspector.replay(group, topic=topic, since=since))
        except BaseException as error:
            done.set_exception(error)

    def tell(work: "Future[int]") -> None:
        problem = work.exception()
        came: dict[str, object] = {"error": type(problem).__name__} if problem else {"events": work.result()}
        audit.done(visit, "replay events ended", group=group, **came)

    with acting(visit, "replay events", Role.OPERATOR, group=group, topic=topic or "-") as facts:
        if group not in {row["group"] for row in wired(visit).row()["groups"]}:
            raise NotFound(f"no group {group[:80]!r} subscribes to events.")
        threading.Thread(target=run, name="palermo-replay", daemon=True).start()
        if not futures.wait([done], wait).done:
            facts["ended"] = False
            done.add_done_callback(tell)
            return None
        facts["events"] = told = done.result()
    wired(visit).forget()
    return told


def unsubscribe(visit: Visit, group: str) -> None:
    """Have no more events come to a group, until a worker of it starts. Raises NotFound."""
    with acting(visit, "unsubscribe", Role.ADMIN, group=group):
        visit.inspector.unsubscribe(group)
        wired(visit).forget()
