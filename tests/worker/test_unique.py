"""Unique jobs as users have them: a worker process, on each broker."""

from typing import Any

import pytest
from msgspec.structs import replace

from palermo.client.client import Client
from palermo.client.handle import Job
from palermo.client.status import State
from palermo.inspector.inspector import Inspector
from tests.contract.tools import message
from tests.harness.rig import Rig
from tests.helpers import eventually


@pytest.fixture
def patient(any_rig: Rig) -> Rig:
    """The same, with a client that waits longer than a busy machine needs."""
    any_rig.client.close()
    any_rig.client = Client(replace(any_rig.settings, publish_timeout=60.0))
    any_rig.inspector = Inspector(any_rig.client)
    return any_rig


def enqueue(rig: Rig, text: str, **options: Any) -> Job:
    """A job that runs until the gate is open; all have one key."""
    unique = {"unique": "until_done", "unique_key": "k", **options}
    return rig.client.enqueue("crew.hold", (str(rig.notes_path), str(rig.gate), text), {}, **unique)


def states(rig: Rig) -> list[tuple[str, str]]:
    return [(row["id"], row["state"]) for row in rig.inspector.unique_keys() if row["id"] and row["state"] != "closed"]


def test_the_second_rerun_of_one_id_says_that_it_replaces_the_first(patient: Rig) -> None:
    rig = patient
    rig.worker()
    enqueue(rig, "first", id="mine")
    eventually(lambda: states(rig) == [("mine", "running")])

    later, last = (enqueue(rig, text, id="mine", on_duplicate="rerun") for text in ("later", "last"))

    assert (later.instead_of, last.instead_of) == ("", "mine")
    rig.open_gate()
    eventually(lambda: not states(rig))
    assert rig.lines() == ["first begins", "first ends", "last begins", "last ends"]

    def told() -> list[object]:
        return [row.get("instead_of") for row in rig.inspector.life("mine") if row["kind"] == "enqueued"]

    rig.client.close()  # which writes what it has still to record
    eventually(lambda: told() == [None, None, "mine"])


def test_one_job_of_a_key_at_a_time_from_its_enqueue_to_its_end(patient: Rig) -> None:
    rig = patient
    worker = rig.worker("-c", "2")
    first = enqueue(rig, "first")
    eventually(lambda: states(rig) == [(first.id, "running")])

    assert enqueue(rig, "second").id == first.id
    later = enqueue(rig, "later", on_duplicate="rerun")
    last = enqueue(rig, "last", on_duplicate="replace")
    assert (later.enqueued, last.enqueued, last.duplicate) == (True, True, "")
    assert (later.instead_of, last.instead_of) == ("", later.id)
    dropped = eventually(lambda: found if (found := later.status()).state is State.DISCARDED else None)
    assert f"job {last.id} was enqueued with the same key" in dropped.message
    (row,) = rig.inspector.unique_keys()
    assert (row["next"], row["unique"], row["queue"]) == (last.id, "until_done", "jobs")
    assert row["worker"].startswith(f"pid:{worker.pid}@")
    rig.open_gate()

    eventually(lambda: not states(rig))
    assert rig.lines() == ["first begins", "first ends", "last begins", "last ends"]

    failed = rig.client.enqueue("crew.raises", ["x"], unique="until_done", unique_key="k")
    assert failed.enqueued
    eventually(lambda: rig.errors().get(failed.id))
    eventually(lambda: not states(rig))
    assert rig.client.enqueue("crew.raises", ["x"], unique="until_start", unique_key="k").enqueued


def test_a_killed_workers_job_keeps_its_key_and_runs_once_more(patient: Rig) -> None:
    rig = patient
    worker = rig.worker()
    held = enqueue(rig, "held")
    eventually(lambda: states(rig) == [(held.id, "running")])

    worker.end()
    assert not enqueue(rig, "never").enqueued
    heir = rig.worker()
    rig.open_gate()

    eventually(lambda: not states(rig))
    assert rig.lines()[-2:] == ["held begins", "held ends"]
    assert heir.alive
    assert enqueue(rig, "next").enqueued
    eventually(lambda: rig.lines()[-1] == "next ends")


def test_a_job_that_another_program_published_twice_runs_once(rig: Rig) -> None:
    headers = {"extra": {"unique": "until_done", "unique-key": "k"}}

    body = f'["{rig.notes_path}", "{rig.gate}", "one"]'.encode()
    jobs = [message(id, job="crew.hold", body=body, **headers) for id in ("one", "two")]
    rig.client.run(lambda broker: broker.publish_many(jobs))
    worker = rig.worker("-c", "2")

    (failed,) = eventually(lambda: list(rig.inspector.failed()))

    assert (failed["id"], failed["error"]["class"]) == ("two", "palermo.errors.DuplicateJob")
    assert "job one has the key 'k'" in failed["error"]["message"]
    rig.open_gate()
    eventually(lambda: not states(rig))
    assert worker.alive
