"""Failed jobs: what is stored of them, what an operator does with them, and when they are retried."""

import threading
from datetime import UTC, datetime
from itertools import pairwise

from tests.harness.rig import Rig
from tests.helpers import PACKAGE, Stopwatch, eventually


def test_a_failed_job_is_stored_with_all_there_is_to_know(rig: Rig) -> None:
    id = rig.enqueue("Send", "nobody", queue="mail", kwargs={"subject": "hello"})
    (waiting,) = rig.inspector.peek("mail")

    rig.burst("-q", "mail")

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
    assert row["worker"].startswith("pid:")
    assert row["worker"].endswith("/worker-1")


def test_failed_jobs_are_requeued_discarded_and_run_once_mended(rig: Rig) -> None:
    ids = [rig.enqueue("fail_unless", "cure") for _ in range(6)]
    rig.burst()
    assert list(rig.failed()) == ids

    rig.palermo("failed", "discard", ids[1], "--yes")
    rig.palermo("failed", "requeue", ids[3])
    assert list(rig.failed()) == [ids[0], ids[2], *ids[4:]]
    rig.palermo("failed", "requeue", "--all", "--yes")
    assert rig.failed() == {}
    back = [ids[3], ids[0], ids[2], ids[4], ids[5]]
    waiting = [(row["id"], row["retries"], row["error"]) for row in rig.inspector.jobs("jobs")]
    assert waiting == [(id, 1, None) for id in back]

    rig.burst()
    assert {id: row["retries"] for id, row in rig.failed().items()} == dict.fromkeys(back, 1)
    rig.palermo("failed", "requeue", ids[0], "--to-queue", "slow", "--yes")
    assert [(row["id"], row["queue"], row["retries"]) for row in rig.inspector.jobs("slow")] == [(ids[0], "slow", 2)]
    rig.palermo("purge", "failed", "--yes")
    assert rig.failed() == {}
    (rig.path / "cure").touch()
    rig.burst("-q", "slow")
    assert rig.lines() == ["mended"]


def test_commands_see_the_failed_jobs_that_each_queue_has_of_its_own(rig: Rig) -> None:
    together = rig.enqueue("fail", "together")
    rig.burst("-q", "*")
    mail, jobs = rig.enqueue("Send", "nobody", queue="mail"), rig.enqueue("fail", "x")

    rig.burst("-q", "*", PALERMO_FAILED_PER_QUEUE="true")

    assert {row["name"]: row["pending"] for row in rig.inspector.queues()} == {
        "failed": 1, "failed:jobs": 1, "failed:mail": 1, "jobs": 0, "mail": 0,
    }  # fmt: skip
    # Right after a look RabbitMQ may count a job less for an instant.
    eventually(lambda: set(rig.failed()) == {together, mail, jobs})
    eventually(lambda: [row["id"] for row in rig.inspector.failed(offset=1, limit=1)] == [jobs])
    rig.palermo("failed", "requeue", mail)
    assert [row["id"] for row in rig.inspector.jobs("mail")] == [mail]
    rig.burst("-q", "mail")
    assert [row["id"] for row in rig.rows("failed", "list", "--requeued")] == [mail]
    rig.palermo("failed", "discard", "--all", "--requeued", "-y")
    eventually(lambda: set(rig.failed()) == {together, jobs})
    rig.palermo("failed", "discard", "--all", "--yes")
    assert rig.failed() == {}


def test_a_body_of_16_mebibytes_runs_and_its_failure_is_stored(rig: Rig) -> None:
    text = "x" * (16 * 1024 * 1024 - 4)  # and four bytes of ["…"]
    id = rig.enqueue("fail", text)

    rig.burst()

    (row,) = rig.failed().values()
    assert (row["id"], row["error"]["class"]) == (id, "ValueError")
    assert row["args"] == [text]


def test_retries_wait_as_their_backoff_says_and_are_counted(rig: Rig) -> None:
    watch = Stopwatch()
    id = rig.client.enqueue("timed.ship", ["box"]).id
    rig.worker(modules=("timed",))

    lines = [line.split() for line in rig.await_lines(5)]

    assert [text for text, _ in lines] == ["box-1", "box-2", "box-3", "box-4", "box-exhausted"]
    times = [float(at) for _, at in lines[:4]]
    for (before, after), wait in zip(pairwise(times), (0.4, 0.8, 1.6), strict=True):
        assert wait <= after - before < wait + 1 + watch.stalled()
    failed = eventually(lambda: rig.failed()[id])
    assert [attempt["attempt"] for attempt in failed["attempts"]] == [1, 2, 3, 4]


def test_jobs_looked_at_while_workers_run_are_neither_lost_nor_doubled(rig: Rig) -> None:
    count, looks = 0, 0

    def enqueue(more: int) -> None:
        nonlocal count
        calls = [("shop.note", (f"{number}",), {}) for number in range(count, count + more)]
        rig.client.enqueue_many(calls, queue="mail")
        count += more

    failed = [rig.enqueue("fail", f"{number}") for number in range(10)]
    rig.burst("-q", "jobs")
    enqueue(1_000)
    rig.worker("-q", "mail")
    rig.worker("-q", "mail,jobs")
    stop = threading.Event()
    wrong: list[object] = []

    def look() -> None:
        nonlocal looks
        while not stop.is_set():
            numbers = [int(row["args"][0]) for row in rig.inspector.jobs("mail", limit=200)]
            if numbers != sorted(numbers):
                wrong.append(numbers)
            rig.inspector.groups()
            looks += 1

    looker = threading.Thread(target=look)
    looker.start()
    try:
        rig.await_lines(count)
        # The workers may have been much faster than the one that looks.
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
    eventually(lambda: list(rig.failed()) == failed)
