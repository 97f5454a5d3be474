"""Promises of the original Palermo about failed jobs and about looking: P7, P8, P15, P17."""

import json
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from palermo.errors import NotFound
from tests.harness.rig import Rig
from tests.helpers import PACKAGE, eventually


def test_P7_a_job_that_raises_goes_to_failed_with_all_there_is_to_know(rig: Rig) -> None:
    id = rig.enqueue("Send", "nobody", queue="mail", subject="hello")
    (waiting,) = rig.inspector.peek("mail")
    worker = rig.worker("-q", "mail")

    eventually(lambda: rig.failed())

    (row,) = rig.rows("failed", "list")
    assert row == rig.rows("failed", "show", id)
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


def test_P7_on_the_wire_body_and_properties_are_unchanged(rabbitmq_rig: Rig) -> None:
    body = b'["nobody"]  '
    headers = {"job-class": "shop.Send", "x-mine": [1, {"a": True}], "created-at": 1_700_000_000}
    rabbitmq_rig.enqueue("note", "makes the queue", queue="mail")
    rabbitmq_rig.put(
        "mail", body, headers=headers, content_type="application/json; charset=utf-8", message_id="m-1", app_id="other"
    )

    rabbitmq_rig.burst("-q", "mail")

    properties, found = rabbitmq_rig.get("failed")
    assert (found, properties.content_type, properties.message_id) == (body, "application/json; charset=utf-8", "m-1")
    assert (properties.delivery_mode, properties.app_id) == (2, "other")
    assert properties.headers.items() >= {**headers, "queue": "mail", "retries": 0}.items()
    assert properties.headers["exception-class"] == "LookupError"
    assert properties.headers["exception-message"] == "no address for hi"
    assert isinstance(properties.headers["failed-at"], int)
    assert properties.headers["stack-trace"].startswith("Traceback")


def test_P7_an_error_of_any_length_is_stored(rig: Rig) -> None:
    id = rig.enqueue("raise_at_length", 3_000_000)

    rig.burst()

    assert len(rig.failed()[id]["error"]["message"]) == 2_000


def test_P8_a_failed_job_is_looked_at_requeued_and_counts_its_retries(rig: Rig) -> None:
    id = rig.enqueue("fail_unless", "cure")
    worker = rig.worker()
    eventually(lambda: rig.failed())

    for retries in (1, 2):
        rig.inspector.requeue(id)
        eventually(lambda retries=retries: retries in [row["retries"] for row in rig.failed().values()])
    # After one look RabbitMQ may count a job less for an instant.
    eventually(lambda: list(rig.failed()) == [id])
    (rig.path / "cure").touch()
    rig.palermo("failed", "requeue", id)
    assert rig.await_lines(1) == ["mended"]
    eventually(lambda: rig.pending() == 0 and rig.failed() == {})
    assert worker.alive


def test_P8_failed_jobs_are_removed_and_requeued_one_by_one_and_all_at_once(rig: Rig) -> None:
    ids = [rig.enqueue("fail", f"{number}") for number in range(6)]
    rig.burst()
    assert list(rig.failed()) == ids

    rig.palermo("failed", "discard", ids[1], "--yes")
    assert list(rig.failed()) == [ids[0], *ids[2:]]
    rig.palermo("failed", "requeue", ids[3])
    assert list(rig.failed()) == [ids[0], ids[2], *ids[4:]]
    rig.palermo("failed", "requeue", "--all", "--yes")
    assert rig.failed() == {}
    waiting = [(row["id"], row["retries"], row["error"]) for row in rig.inspector.jobs("jobs")]
    assert waiting == [(id, 1, None) for id in (ids[3], ids[0], ids[2], ids[4], ids[5])]

    rig.burst()
    assert {row["retries"] for row in rig.failed().values()} == {1}
    rig.palermo("purge", "failed", "--yes")
    assert rig.failed() == {}


def test_P15_all_that_the_pages_show_and_do_is_in_the_library(rig: Rig) -> None:
    inspector = rig.inspector
    ids = [rig.enqueue("fail", f"{number}") for number in range(3)]
    rig.enqueue("note", "x", queue="mail")

    queues = {row["name"]: row for row in inspector.queues_info()}
    assert queues["jobs"] == {"name": "jobs", "pending": 3, "in_progress": 0, "workers": 0, "paused": False}
    assert queues["failed"]["pending"] == 0
    assert [row["id"] for row in inspector.jobs_in_queue("jobs", limit=2)] == ids[:2]
    assert inspector.workers_info() == []
    worker = rig.worker()
    eventually(lambda: len(rig.failed()) == 3)
    (row,) = eventually(
        lambda: [row for row in inspector.workers_info() if (row["processed"], row["state"]) == (4, "idle")]
    )
    assert (row["pid"], row["queues"], row["slots"]) == (worker.pid, ["jobs", "mail"], 1)
    assert row["failed"] == 3
    serving = {"failed": 0, "jobs": 1, "mail": 1}
    eventually(lambda: {row["name"]: row["workers"] for row in inspector.queues_info()} == serving)

    inspector.retry_failed_job(ids[0])
    eventually(lambda: rig.failed().get(ids[0], {}).get("retries") == 1)
    inspector.retry_all()
    eventually(lambda: sorted(row["retries"] for row in rig.failed().values()) == [1, 1, 2])
    assert inspector.purge_queue("failed") == 3
    with pytest.raises(NotFound):
        inspector.retry_failed_job(ids[0])


def test_P15_a_job_that_runs_is_shown_with_its_worker(rig: Rig) -> None:
    worker = rig.worker("-c", "2")
    id = rig.enqueue("hold", "job")
    rig.await_lines(1)

    (row,) = eventually(lambda: [row for row in rig.rows("workers") if row["state"] == "working"])

    assert (row["pid"], row["slots"]) == (worker.pid, 2)
    assert [(job["id"], job["job"], job["queue"]) for job in row["jobs"]] == [(id, "shop.hold", "jobs")]
    rig.open_gate()
    eventually(lambda: [row["jobs"] for row in rig.workers()] == [[]])


def listed(rig: Rig, **page: Any) -> list[str]:
    return [row["id"] for row in rig.inspector.jobs("mail", **page)]


def test_P17_looking_changes_nothing_loses_nothing_and_keeps_the_order(rig: Rig) -> None:
    ids = [rig.enqueue("note", f"{number}", queue="mail") for number in range(150)]
    failing = [rig.enqueue("fail", f"{number}") for number in range(10)]
    rig.burst("-q", "jobs")

    for look in (["jobs", "mail"], ["failed", "list"]):
        rig.palermo(*look)
    for number in range(0, 150, 50):
        wanted = ids[number : number + 50]
        # After one look RabbitMQ may count a job less for an instant.
        eventually(lambda: listed(rig, offset=number, limit=50) == wanted)  # noqa: B023
    eventually(lambda: listed(rig, limit=10, newest=True) == ids[: 150 - 11 : -1])
    rig.inspector.groups()

    eventually(lambda: listed(rig, limit=1_000) == ids)
    assert {row["retries"] for row in rig.inspector.jobs("mail", limit=1_000)} == {None}
    rig.inspector.failed_job(failing[7])
    eventually(lambda: list(rig.failed()) == failing)
    rig.burst("-q", "mail")
    assert rig.lines() == [f"{number}" for number in range(150)]


def test_P17_looking_while_workers_run_loses_no_job_and_runs_none_twice(rig: Rig) -> None:
    count, looks = 0, 0

    def enqueue(more: int) -> None:
        nonlocal count
        calls = [("shop.note", (f"{number}",), {}) for number in range(count, count + more)]
        rig.client.enqueue_many(calls, queue="mail")
        count += more

    enqueue(1_000)
    workers = [rig.worker("-q", "mail"), rig.worker("-q", "mail,jobs")]
    stop = threading.Event()
    wrong: list[object] = []

    def look() -> None:
        nonlocal looks
        while not stop.is_set():
            numbers = [int(row["args"][0]) for row in rig.inspector.jobs("mail", limit=200)]
            if numbers != sorted(numbers):
                wrong.append(numbers)
            looks += 1

    looker = threading.Thread(target=look)
    looker.start()
    try:
        rig.await_lines(count)
        # The workers may have been much faster than who looks.
        while looks <= 3 and looker.is_alive():
            enqueue(200)
            rig.await_lines(count)
    finally:
        stop.set()
        looker.join()

    assert looks > 3
    assert wrong == []
    assert sorted(map(int, rig.lines())) == list(range(count))
    assert rig.pending("mail") == 0
    assert all(worker.alive for worker in workers)


def test_P17_looking_at_what_a_program_killed_meanwhile_held_gives_all_of_it_back(rig: Rig) -> None:
    ids = [rig.enqueue("note", f"{number}", queue="mail") for number in range(50)]
    program = (
        "import os, palermo\nfrom palermo.contract.sweep import Keep\n"
        "def judge(message):\n    os._exit(9) if message.id == " + json.dumps(ids[30]) + " else None\n"
        "    return Keep()\n"
        "async def sweep(broker): await broker.sweep('mail', judge)\n"
        "from palermo.client.client import default_client\ndefault_client().run(sweep)\n"
    )

    with pytest.raises(AssertionError) as killed:
        rig.python(program)

    assert "Traceback" not in str(killed.value)
    eventually(lambda: rig.pending("mail") == 50)
    assert [row["id"] for row in rig.inspector.jobs("mail")] == ids
