"""Unique jobs as users have them: a worker process, on each broker."""

from typing import Any

import pytest
from msgspec.structs import replace

from palermo.client.client import Client
from palermo.client.handle import Job
from palermo.client.status import State
from palermo.inspector.inspector import Inspector
from tests.contract.tools import message
from tests.helpers import eventually
from tests.worker.site import Site


@pytest.fixture
def patient(any_site: Site) -> Site:
    """The same, with a client that waits longer than a busy machine needs."""
    any_site.client.close()
    any_site.client = Client(replace(any_site.settings, publish_timeout=60.0))
    any_site.inspector = Inspector(any_site.client)
    return any_site


def enqueue(site: Site, text: str, **options: Any) -> Job:
    """A job that runs until the gate is open; all have one key."""
    unique = {"unique": "until_done", "unique_key": "k", **options}
    return site.client.enqueue("crew.hold", (str(site.notes_path), str(site.gate), text), {}, **unique)


def states(site: Site) -> list[tuple[str, str]]:
    return [(row["id"], row["state"]) for row in site.inspector.unique_keys() if row["id"] and row["state"] != "closed"]


def test_of_two_more_enqueues_of_one_id_while_it_runs_the_second_says_that_it_replaces_the_first(patient: Site) -> None:
    site = patient
    site.start()
    enqueue(site, "first", id="mine")
    eventually(lambda: states(site) == [("mine", "running")])

    later, last = (enqueue(site, text, id="mine", on_duplicate="rerun") for text in ("later", "last"))

    assert (later.instead_of, last.instead_of) == ("", "mine")
    site.open_gate()
    eventually(lambda: not states(site))
    assert site.notes() == ["first begins", "first ends", "last begins", "last ends"]

    def told() -> list[object]:
        return [row.get("instead_of") for row in site.inspector.life("mine") if row["kind"] == "enqueued"]

    site.client.close()  # which writes what it has still to record
    eventually(lambda: told() == [None, None, "mine"])


def test_one_job_of_a_key_at_a_time_from_its_enqueue_to_its_end(patient: Site) -> None:
    site = patient
    worker = site.start("-c", "2")
    first = enqueue(site, "first")
    eventually(lambda: states(site) == [(first.id, "running")])

    assert enqueue(site, "second").id == first.id
    later = enqueue(site, "later", on_duplicate="rerun")
    last = enqueue(site, "last", on_duplicate="replace")
    assert (later.enqueued, last.enqueued, last.duplicate) == (True, True, "")
    assert (later.instead_of, last.instead_of) == ("", later.id)
    dropped = eventually(lambda: found if (found := later.status()).state is State.DISCARDED else None)
    assert f"job {last.id} was enqueued with the same key" in dropped.message
    (row,) = site.inspector.unique_keys()
    assert (row["next"], row["unique"], row["queue"]) == (last.id, "until_done", "jobs")
    assert row["worker"].startswith(f"pid:{worker.pid}@")
    site.open_gate()

    eventually(lambda: not states(site))
    assert site.notes() == ["first begins", "first ends", "last begins", "last ends"]

    failed = site.client.enqueue("crew.raises", ["x"], unique="until_done", unique_key="k")
    assert failed.enqueued
    eventually(lambda: site.errors().get(failed.id))
    eventually(lambda: not states(site))
    assert site.client.enqueue("crew.raises", ["x"], unique="until_start", unique_key="k").enqueued


def test_a_killed_workers_job_keeps_its_key_and_runs_once_more(patient: Site) -> None:
    site = patient
    worker = site.start()
    held = enqueue(site, "held")
    eventually(lambda: states(site) == [(held.id, "running")])

    worker.end()
    assert not enqueue(site, "never").enqueued
    heir = site.start()
    site.open_gate()

    eventually(lambda: not states(site))
    assert site.notes()[-2:] == ["held begins", "held ends"]
    assert heir.alive
    assert enqueue(site, "next").enqueued
    eventually(lambda: site.notes()[-1] == "next ends")


def test_a_job_that_another_program_published_twice_runs_once(site: Site) -> None:
    headers = {"extra": {"unique": "until_done", "unique-key": "k"}}

    body = f'["{site.notes_path}", "{site.gate}", "one"]'.encode()
    jobs = [message(id, job="crew.hold", body=body, **headers) for id in ("one", "two")]
    site.client.run(lambda broker: broker.publish_many(jobs))
    worker = site.start("-c", "2")

    (failed,) = eventually(lambda: list(site.inspector.failed()))

    assert (failed["id"], failed["error"]["class"]) == ("two", "palermo.errors.DuplicateJob")
    assert "job one has the key 'k'" in failed["error"]["message"]
    site.open_gate()
    eventually(lambda: not states(site))
    assert worker.alive
