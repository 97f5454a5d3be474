"""The actions on events: replay events to a group, and unsubscribe a group."""

import threading
import time
from concurrent import futures
from concurrent.futures import Future

from palermo.errors import NotFound
from palermo.inspector.inspector import Inspector
from palermo.webui.actions.audited_action import audited_action
from palermo.webui.base.site import Visit
from palermo.webui.base.users import Role
from palermo.webui.security import audit
from palermo.webui.state.topology_view import topology_view

#: The ages of events that may be replayed: by name, in words and in seconds; None for all that are kept.
AGES: dict[str, tuple[str, float | None]] = {
    "hour": ("of the last hour", 3_600.0),
    "day": ("of the last day", 86_400.0),
    "week": ("of the last week", 7 * 86_400.0),
    "all": ("all that are kept", None),
}


def replay(
    visit: Visit, group: str, *, topic: str | None = None, age: float | None = None, wait: float = 5.0
) -> int | None:
    """Replay the events of the last `age` seconds to a group. Returns how many.

    Returns None if that takes longer than `wait` seconds; it then goes on. Raises NotFound, TopicInvalid,
    BrokerRefused.
    """
    since = None if age is None else time.time() - age
    # Not the visit's inspector: its time limit is too short for a replay.
    inspector = Inspector(visit.site.client, visit.actor)
    done: Future[int] = Future()

    def run() -> None:
        try:
            done.set_result(inspector.replay(group, topic=topic, since=since))
        except BaseException as error:
            done.set_exception(error)

    def on_end(work: "Future[int]") -> None:
        problem = work.exception()
        came: dict[str, object] = {"error": type(problem).__name__} if problem else {"events": work.result()}
        audit.done(visit, "replay events ended", group=group, **came)

    with audited_action(visit, "replay events", Role.OPERATOR, group=group, topic=topic or "-") as facts:
        if group not in {row["group"] for row in topology_view(visit.site).row()["groups"]}:
            raise NotFound(f"no group {group[:80]!r} subscribes to events.")
        threading.Thread(target=run, name="palermo-replay", daemon=True).start()
        if not futures.wait([done], wait).done:
            facts["ended"] = False
            done.add_done_callback(on_end)
            return None
        facts["events"] = replayed = done.result()
    topology_view(visit.site).clear()
    return replayed


def unsubscribe(visit: Visit, group: str) -> None:
    """Unsubscribe a group: no events come to it until one of its workers starts. Raises NotFound."""
    with audited_action(visit, "unsubscribe", Role.ADMIN, group=group):
        visit.inspector.unsubscribe(group)
        topology_view(visit.site).clear()
