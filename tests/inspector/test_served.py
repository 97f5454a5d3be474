"""Whether a worker takes jobs from a queue, by rows of queues and workers."""

from typing import Any

import pytest

from palermo.inspector.queues import unserved_text
from palermo.inspector.rates import Snapshot


def snapshot(*workers: dict[str, Any], **served: int) -> Snapshot:
    """A moment with these workers, and with so many workers on each queue."""
    return Snapshot(at=0.0, queues=[{"name": name, "workers": n} for name, n in served.items()], workers=[*workers])


def worker(*queues: str, answers: bool = True) -> dict[str, Any]:
    return {"queues": [*queues], "answers": answers}


@pytest.mark.parametrize("found", [snapshot(legacy=1), snapshot(worker("legacy")), snapshot(worker("leg*", "mail"))])
def test_a_queue_with_a_worker_is_served_also_before_it_exists(found: Snapshot) -> None:
    assert unserved_text(found, "legacy") == ""


@pytest.mark.parametrize(
    "found",
    [
        snapshot(),
        snapshot(legacy=0),
        snapshot(worker("mail")),
        snapshot(worker("*", "!legacy")),
        snapshot(worker("*", answers=False)),
        snapshot(worker("")),
    ],
)
def test_a_queue_without_a_worker_that_answers_is_not_served(found: Snapshot) -> None:
    assert unserved_text(found, "legacy") == "no worker serves queue 'legacy'."


def test_a_mistyped_queue_is_answered_with_the_served_one_that_was_meant() -> None:
    found = snapshot(legacy=1, legcy=0)

    assert unserved_text(found, "legcy") == "no worker serves queue 'legcy'. Did you mean 'legacy'?"
