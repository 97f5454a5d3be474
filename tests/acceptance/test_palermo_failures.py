"""Promises of the original Palermo about failed jobs and about looking: P7, P8, P15, P17."""

import json
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from palermo.errors import NotFound
from tests.acceptance.place import Place
from tests.helpers import PACKAGE, eventually


def test_P7_a_job_that_raises_goes_to_failed_with_all_there_is_to_know(place: Place) -> None:
    id = place.enqueue("Send", "nobody", queue="mail", subject="hello")
    (waiting,) = place.inspector.peek("mail")
    worker = place.worker("-q", "mail")

    eventually(lambda: place.failed())

    (row,) = place.rows("failed", "list")
    assert row == place.rows("failed", "show", id)
    assert (row["id"], row["queue"], row["job"], row["state"], row["retries"]) == (id, "mail", "shop.Send", "failed", 0)
    same = ("args", "kwargs", "preview", "content_type", "created_at")
    assert {name: row[name] for name in same} == {name: waiting[name] for name in same}
    assert (row["args"], row["kwargs"]) == (["nobody"], {"subject": "hello"})
    error = row["error"]
    assert (error["class"], error["message"]) == ("LookupError", "no address for hello")
    assert error["traceback"].startswith("Traceback (most recent call last)")
    assert "in process\n" in error["traceback"]
    assert str(PACKAGE) not in error["traceback"]
    assert datetime.fromisoformat(row["created_at"]) <= datetime.fromisoformat(row["failed_at"]) <= datetime.now(UTC)
    assert row["worker"].startswith(f"pid:{worker.pid}@")
    assert row["worker"].endswith("/worker-1")


def test_P7_on_the_wire_body_and_properties_are_unchanged(rabbitmq_place: Place) -> None:
    body = b'["nobody"]  '
    headers = {"job-class": "shop.Send", "x-mine": [1, {"a": True}], "created-at": 1_700_000_000}
    rabbitmq_place.enqueue("note", "makes the queue", queue="mail")
    rabbitmq_place.put(
        "mail", body, headers=headers, content_type="application/json; charset=utf-8", message_id="m-1", app_id="other"
    )

    rabbitmq_place.burst("-q", "mail")

    properties, found = rabbitmq_place.get("failed")
    assert (found, properties.content_type, properties.message_id) == (body, "application/json; charset=utf-8", "m-1")
    assert (properties.delivery_mode, properties.app_id) == (2, "other")
    assert properties.headers.items() >= {**headers, "queue": "mail", "retries": 0}.items()
    assert properties.headers["exception-class"] == "LookupError"
    assert properties.headers["exception-message"] == "no address for hi"
    assert isinstance(properties.headers["failed-at"], int)
    assert properties.headers["stack-trace"].startswith("Traceback")


def test_P7_an_error_of_any_length_is_stored(place: Place) -> None:
    id = place.enqueue("raise_at_length", 3_000_000)

    place.burst()

    assert len(place.failed()[id]["error"]["message"]) == 2_000


def test_P8_a_failed_job_is_looked_at_requeued_and_counts_its_retries(place: Place) -> None:
    id = place.enqueue("fail_unless", "cure")
    worker = place.worker()
    eventually(lambda: place.failed())

    for retries in (1, 2):
        place.inspector.requeue(id)
        eventually(lambda retries=retries: retries in [row["retries"] for row in place.failed().values()])
    # After one look RabbitMQ may count a job less for an instant.
    eventually(lambda: list(place.failed()) == [id])
    (place.path / "cure").touch()
    place.palermo("failed", "requeue", id)
    assert place.await_lines(1) == ["mended"]
    eventually(lambda: place.pending() == 0 and place.failed() == {})
    assert worker.alive


def test_P8_failed_jobs_are_removed_and_requeued_one_by_one_and_all_at_once(place: Place) -> None:
    ids = [place.enqueue("fail", f"{number}") for number in range(6)]
    place.burst()
    assert list(place.failed()) == ids

    place.palermo("failed", "discard", ids[1], "--yes")
    assert list(place.failed()) == [ids[0], *ids[2:]]
    place.palermo("failed", "requeue", ids[3])
    assert list(place.failed()) == [ids[0], ids[2], *ids[4:]]
    place.palermo("failed", "requeue", "--all", "--yes")
    assert place.failed() == {}
    waiting = [(row["id"], row["retries"], row["error"]) for row in place.inspector.jobs("jobs")]
    assert waiting == [(id, 1, None) for id in (ids[3], ids[0], ids[2], ids[4], ids[5])]

    place.burst()
    assert {row["retries"] for row in place.failed().values()} == {1}
    place.palermo("purge", "failed", "--yes")
    assert place.failed() == {}


def test_P15_all_that_the_pages_show_and_do_is_in_the_library(place: Place) -> None:
    inspector = place.inspector
    ids = [place.enqueue("fail", f"{number}") for number in range(3)]
    place.enqueue("note", "x", queue="mail")

    queues = {row["name"]: row for row in inspector.queues_info()}
    assert queues["jobs"] == {"name": "jobs", "pending": 3, "in_progress": 0, "workers": 0, "paused": False}
    assert queues["failed"]["pending"] == 0
    assert [row["id"] for row in inspector.jobs_in_queue("jobs", limit=2)] == ids[:2]
    assert inspector.workers_info() == []
    worker = place.worker()
    eventually(lambda: len(place.failed()) == 3)
    (row,) = eventually(
        lambda: [row for row in inspector.workers_info() if (row["processed"], row["state"]) == (4, "idle")]
    )
    assert (row["pid"], row["queues"], row["slots"]) == (worker.pid, ["jobs", "mail"], 1)
    assert row["failed"] == 3
    serving = {"failed": 0, "jobs": 1, "mail": 1}
    eventually(lambda: {row["name"]: row["workers"] for row in inspector.queues_info()} == serving)

    inspector.retry_failed_job(ids[0])
    eventually(lambda: place.failed().get(ids[0], {}).get("retries") == 1)
    inspector.retry_all()
    eventually(lambda: sorted(row["retries"] for row in place.failed().values()) == [1, 1, 2])
    assert inspector.purge_queue("failed") == 3
    with pytest.raises(NotFound):
        inspector.retry_failed_job(ids[0])


def test_P15_a_job_that_runs_is_shown_with_its_worker(place: Place) -> None:
    worker = place.worker("-c", "2")
    id = place.enqueue("hold", "job")
    place.await_lines(1)

    (row,) = eventually(lambda: [row for row in place.rows("workers") if row["state"] == "working"])

    assert (row["pid"], row["slots"]) == (worker.pid, 2)
    assert [(job["id"], job["job"], job["queue"]) for job in row["jobs"]] == [(id, "shop.hold", "jobs")]
    place.open_gate()
    eventually(lambda: [row["jobs"] for row in place.workers()] == [[]])


def listed(place: Place, **page: Any) -> list[str]:
    return [row["id"] for row in place.inspector.jobs("mail", **page)]


def test_P17_looking_changes_nothing_loses_nothing_and_keeps_the_order(place: Place) -> None:
    ids = [place.enqueue("note", f"{number}", queue="mail") for number in range(150)]
    failing = [place.enqueue("fail", f"{number}") for number in range(10)]
    place.burst("-q", "jobs")

    for look in (["jobs", "mail"], ["failed", "list"]):
        place.palermo(*look)
    for number in range(0, 150, 50):
        wanted = ids[number : number + 50]
        # After one look RabbitMQ may count a job less for an instant.
        eventually(lambda: listed(place, offset=number, limit=50) == wanted)  # noqa: B023
    eventually(lambda: listed(place, limit=10, newest=True) == ids[: 150 - 11 : -1])
    place.inspector.groups()

    eventually(lambda: listed(place, limit=1_000) == ids)
    assert {row["retries"] for row in place.inspector.jobs("mail", limit=1_000)} == {None}
    place.inspector.failed_job(failing[7])
    eventually(lambda: list(place.failed()) == failing)
    place.burst("-q", "mail")
    assert place.lines() == [f"{number}" for number in range(150)]


def test_P17_looking_while_workers_run_loses_no_job_and_runs_none_twice(place: Place) -> None:
    count, looks = 0, 0

    def enqueue(more: int) -> None:
        nonlocal count
        calls = [("shop.note", (f"{number}",), {}) for number in range(count, count + more)]
        place.client.enqueue_many(calls, queue="mail")
        count += more

    enqueue(1_000)
    workers = [place.worker("-q", "mail"), place.worker("-q", "mail,jobs")]
    stop = threading.Event()
    wrong: list[object] = []

    def look() -> None:
        nonlocal looks
        while not stop.is_set():
            numbers = [int(row["args"][0]) for row in place.inspector.jobs("mail", limit=200)]
            if numbers != sorted(numbers):
                wrong.append(numbers)
            looks += 1

    looker = threading.Thread(target=look)
    looker.start()
    try:
        place.await_lines(count)
        # The workers may have been much faster than who looks.
        while looks <= 3 and looker.is_alive():
            enqueue(200)
            place.await_lines(count)
    finally:
        stop.set()
        looker.join()

    assert looks > 3
    assert wrong == []
    assert sorted(map(int, place.lines())) == list(range(count))
    assert place.pending("mail") == 0
    assert all(worker.alive for worker in workers)


def test_P17_looking_at_what_a_program_killed_meanwhile_held_gives_all_of_it_back(place: Place) -> None:
    ids = [place.enqueue("note", f"{number}", queue="mail") for number in range(50)]
    program = (
        "import os, palermo\nfrom palermo.contract.sweep import Keep\n"
        "def judge(message):\n    os._exit(9) if message.id == " + json.dumps(ids[30]) + " else None\n"
        "    return Keep()\n"
        "async def sweep(broker): await broker.sweep('mail', judge)\n"
        "from palermo.client.client import default_client\ndefault_client().run(sweep)\n"
    )

    with pytest.raises(AssertionError) as killed:
        place.python(program)

    assert "Traceback" not in str(killed.value)
    eventually(lambda: place.pending("mail") == 50)
    assert [row["id"] for row in place.inspector.jobs("mail")] == ids
