"""The API for events: list the subscribed groups, replay kept events to a group, unsubscribe a group."""

from typing import Annotated

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field

from palermo.contract.row_types import TopicRow
from palermo.webui import actions, tuning
from palermo.webui.api.rows import PROBLEM_RESPONSES, Removed, Rows
from palermo.webui.site import Visiting
from palermo.webui.state.listings import topology
from palermo.webui.threads import Router

router = Router(prefix="/topics", tags=["topics"], responses=PROBLEM_RESPONSES)

Group = Annotated[str, Path(max_length=255)]


class Topics(Rows[TopicRow]):
    """All groups by name, and the exchanges that deliver events to them."""

    gateway: str = Field(description="The exchange that events are published to.")
    distributor: str = Field(description="The exchange that routes events to groups by their patterns.")
    unsubscribed: str = Field(description="What happens to events without a subscribed group: keep or refuse.")
    kept: int | None = Field(description="About how many events are kept; null where none are.")


class Replay(BaseModel):
    """The events to replay."""

    model_config = ConfigDict(extra="forbid")

    topic: str | None = Field(default=None, max_length=255, description="A pattern; by default the group's own.")
    age: float | None = Field(default=None, gt=0, description="Only events of the last `age` seconds.")


class Replayed(BaseModel):
    """The number of replayed events; null if the replay takes long and is still running."""

    told: int | None


@router.get("", name="api_topics")
def topics(visit: Visiting) -> Topics:
    """All groups that subscribe to events, by name."""
    wiring = topology(visit.site).get()
    rows = wiring["groups"]
    return Topics.model_validate({**wiring, "rows": rows, "total": len(rows), "page": 1, "limit": len(rows)})


@router.post("/{group:palermo}/replay", name="api_replay_topics")
def replay(visit: Visiting, group: Group, old: Replay) -> Replayed:
    """Replay kept events to this group, as jobs with new ids. Role: operator."""
    done = actions.replay(visit, group, topic=old.topic, age=old.age, wait=tuning.STALE)
    return Replayed(told=done.taken if done.over else None)


@router.delete("/{group:palermo}", name="api_remove_topics")
def remove(visit: Visiting, group: Group) -> Removed:
    """Unsubscribe this group until one of its workers starts. Its queue stays. Role: admin."""
    actions.unsubscribe(visit, group)
    return Removed(removed=1)
