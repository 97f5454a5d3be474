"""Groups that subscribe to events, and note what they were told."""

import os
from typing import Any

from crew import write

import palermo


def note(group: str, payload: Any) -> None:
    job = palermo.current_job()
    assert job is not None
    write(os.environ["PALERMO_TEST_TRACE"], f"{group} {job.topic} {payload!r}")


@palermo.subscribe("tracker.*.updated", group="notifications")
def notify(payload: Any) -> None:
    note("notifications", payload)


@palermo.subscribe("tracker.#", group="audit", from_start=True)
class Audit:
    def process(self, payload: Any) -> None:
        note("audit", payload)
