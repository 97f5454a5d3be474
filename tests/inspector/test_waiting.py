"""Many waiting jobs at once: counted, cancelled, moved and discarded."""

import pytest

from palermo.client.client import Client
from palermo.core.unique_keys import Mode, UniqueLock, with_lock
from palermo.errors import DuplicateJob, NotFound, UsageError
from palermo.inspector.inspector import Inspector
from palermo.views.filter import JobFilter
from tests.helpers import eventually
from tests.inspector.jobs import message, publish

MAIL = JobFilter(job="shop.mail.*")


def fill(client: Client, number: int = 6) -> None:
    """Jobs of two names in turn."""
    publish(
        client,
        *(
            message(f"j{nth}", f"to-{nth}", queue="mail", job="shop.mail.Send" if nth % 2 else "shop.Resize")
            for nth in range(number)
        ),
    )


def waiting(inspector: Inspector, queue: str = "mail") -> list[str]:
    return [row["id"] for row in inspector.jobs.list(queue, limit=5_000).rows]


def test_matching_jobs_are_moved_and_the_rest_keep_their_order(client: Client, inspector: Inspector) -> None:
    fill(client)

    assert inspector.jobs.count("mail", MAIL) == 3
    assert inspector.jobs.count("mail", MAIL, depth=2) == 1
    assert inspector.jobs.count("mail", JobFilter(text="TO-4")) == 1
    moved = inspector.jobs.move("mail", MAIL, "slow")

    assert [(job.id, job.queue) for job in moved] == [("j1", "slow"), ("j3", "slow"), ("j5", "slow")]
    eventually(lambda: waiting(inspector) == ["j0", "j2", "j4"])
    eventually(lambda: waiting(inspector, "slow") == ["j1", "j3", "j5"])
    assert {row["queue"] for row in inspector.jobs.list("slow").rows} == {"slow"}


def test_jobs_are_cancelled_discarded_and_not_moved_to_odd_places(client: Client, inspector: Inspector) -> None:
    fill(client, 4)
    for to in ("mail", "failed", "a*"):
        with pytest.raises(UsageError):
            inspector.jobs.move("mail", MAIL, to)
    with pytest.raises(NotFound):
        inspector.jobs.discard("nowhere", MAIL)

    assert [job.id for job in inspector.jobs.cancel_waiting("mail", MAIL)] == ["j1", "j3"]
    states = eventually(lambda: {row["id"]: row["state"] for row in inspector.jobs.list("mail").rows})
    assert states == {"j0": "pending", "j1": "cancelled", "j2": "pending", "j3": "cancelled"}

    with pytest.raises(NotFound, match="no job nobody is waiting there"):
        inspector.jobs.discard("mail", ["j1", "nobody", "j2"])
    eventually(lambda: waiting(inspector) == ["j0", "j3"])


def test_a_move_that_is_stopped_leaves_the_rest_where_it_is(client: Client, inspector: Inspector) -> None:
    fill(client)
    asked = iter([False, False])

    moved = inspector.jobs.move("mail", JobFilter(), "slow", stop=lambda: next(asked, True))

    assert [job.id for job in moved] == ["j0", "j1"]
    eventually(lambda: waiting(inspector) == ["j2", "j3", "j4", "j5"])


def test_a_number_is_found_however_the_body_writes_it(client: Client, inspector: Inspector) -> None:
    bodies = [
        b"[4711]",
        b'["order 4711"]',
        b'["\\u0034711"]',
        b"[4.711e3]",
        b'[{"$palermo": "tuple", "value": [4, 711, "4711"]}]',
        '[{"a": "ä 4711"}]'.encode(),
    ]
    meant = [message(f"meant-{nth}", body=body) for nth, body in enumerate(bodies)]
    publish(client, *meant, message("other", 47, 11), message("more", "order 12"))

    assert [row["id"] for row in inspector.jobs.list("mail", filter=JobFilter(text="4711"))] == [
        each.id for each in meant
    ]
    assert inspector.jobs.list("mail", filter=JobFilter(text="4711")).total == 6
    first = inspector.jobs.list("mail", filter=JobFilter(text="4711"), offset=1, limit=1, depth=3)
    assert ([row["id"] for row in first.rows], first.total, first.unseen) == (["meant-1"], 3, 5)
    assert inspector.jobs.count("mail", JobFilter(text="4711")) == 6


def test_jobs_whose_key_another_job_has_are_neither_edited_nor_moved(client: Client, inspector: Inspector) -> None:
    lock = UniqueLock(key="shop.sync:a", mode=Mode.DONE)
    publish(client, with_lock(message("first", "old", queue="jobs", job="shop.sync"), lock))
    client.enqueue("shop.sync", ["a"], queue="elsewhere", unique="until_done", unique_key="a")

    with pytest.raises(UsageError, match=r"another job has it.* Nothing was changed"):
        inspector.jobs.edit("first", args=["new"], waits_in="jobs")
    with pytest.raises(DuplicateJob, match="remains in queue jobs"):
        inspector.jobs.move("jobs", "first", "slow")

    assert [row["args"] for row in inspector.jobs.list("jobs").rows] == [["old"]]
