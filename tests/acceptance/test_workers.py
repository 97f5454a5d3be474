"""Programs that are killed, and workers that wait and are slowed down."""

import statistics
import sys
import time
from collections.abc import Iterator

from tests.harness.rig import Rig
from tests.helpers import eventually, idle_share


def test_a_waiting_worker_uses_no_core_and_starts_a_job_at_once(rig: Rig) -> None:
    worker = rig.worker("-q", "high,jobs,low")
    rig.ready(worker)
    rig.enqueue("stamp", -1)  # the connection is opened, and what is made once is there
    rig.await_lines(1, "stamps")
    rig.ready(worker)

    idle_share(worker.tree(), over=3.0)

    def waits() -> Iterator[float]:
        """Milliseconds from the call to the start of each job."""
        for number in range(5):
            called = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            rig.enqueue("stamp", number)
            yield (int(rig.await_lines(number + 2, "stamps")[-1].split()[1]) - called) / 1e6
            rig.ready(worker)

    # 5 on a machine of its own; a worker that looked once a second would take more.
    assert statistics.median(waits()) < 1_000


def test_a_hook_knows_the_size_of_the_queue_and_sets_the_pace(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    worker = rig.worker("-q", "jobs,bulk", modules=("shop", "paced"))
    rig.await_lines(2, "sizes")  # the worker keeps the pace of the first answer when it asks again

    rig.client.enqueue_many([("shop.note", (f"{number}",), {}) for number in range(4)])

    eventually(lambda: rig.lines("sizes")[-1] == "jobs 3")
    assert rig.await_lines(1) == ["0"]
    rig.open_gate("hurry")
    rig.await_lines(4)
    eventually(lambda: rig.lines("sizes")[-1] == "jobs 0")
    assert worker.alive


PUBLISHER = """
import os, shop
confirmed = os.open("confirmed", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for number in range(1_000_000):
    os.write(confirmed, (shop.note.enqueue(f"{number}").id + "\\n").encode())
"""


def test_a_program_killed_while_it_enqueues_loses_no_confirmed_job(rig: Rig) -> None:
    for round in range(1, 3):
        publisher = rig.launch([sys.executable, "-c", PUBLISHER])
        rig.await_lines(150 * round, "confirmed")
        publisher.kill9()

    waiting = {row["id"]: row for row in rig.inspector.jobs.list("jobs", limit=1_000_000)}

    confirmed = rig.lines("confirmed")
    assert [id for id in waiting if id in set(confirmed)] == confirmed
    # Of each program the very last job may be stored and not yet confirmed.
    assert len(waiting) - len(confirmed) in (0, 1, 2)
    kinds = {(row["job"], row["content_type"], len(row["args"])) for row in waiting.values()}
    assert kinds == {("shop.note", "application/json", 1)}
