"""Promises of Resque about queues: R2, R11, R13."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from palermo.errors import NotFound
from tests.contract.tools import empty_looks_are_forgotten
from tests.harness.rig import Rig
from tests.helpers import eventually


def test_R2_queues_are_served_in_the_order_given_looked_at_again_after_each_job(rig: Rig) -> None:
    for number in range(3):
        rig.enqueue("note", f"low {number}", queue="low")
        rig.enqueue("note", f"middle {number}", queue="middle")
    rig.enqueue("enqueue_and_hold", "middle first", "high", "high at once", queue="alpha")
    rig.open_gate()

    rig.burst("-q", "high,alpha,middle,low")

    middle = [f"middle {number}" for number in range(3)]
    assert rig.lines() == ["middle first", "high at once", *middle, *(f"low {number}" for number in range(3))]


def test_R2_a_job_for_the_first_queue_goes_before_all_that_waits(rig: Rig) -> None:
    worker = rig.worker("-q", "high,low")
    rig.ready(worker)
    rig.enqueue("hold", "running", queue="low")
    rig.await_lines(1)
    for number in range(3):
        rig.enqueue("note", f"low {number}", queue="low")
    for number in range(3):
        rig.enqueue("note", f"high {number}", queue="high")
    asyncio.run(empty_looks_are_forgotten())

    rig.open_gate()

    lines = rig.await_lines(8)
    assert lines[2:] == [f"{queue} {number}" for queue in ("high", "low") for number in range(3)]


def test_R2_stars_globs_and_negations_choose_queues_and_find_new_ones(rig: Rig) -> None:
    queues = ("file_in", "file_out", "low", "mail")
    for queue in queues:
        rig.enqueue("note", queue, queue=queue)
    rig.enqueue("fail", "x", queue="file_in")

    rig.burst("-q", "file_*")
    assert rig.lines() == ["file_in", "file_out"]
    rig.burst("-q", "mail,*,!low")
    assert rig.lines()[2:] == ["mail"]
    assert rig.pending("low") == 1
    worker = rig.worker("-q", "*,!low")
    rig.ready(worker)
    rig.enqueue("note", "new", queue="only-just-made")

    assert rig.await_lines(4)[3:] == ["new"]
    assert (rig.pending("low"), rig.pending("failed")) == (1, 1)


def test_R2_no_worker_serves_failed(rig: Rig) -> None:
    done = rig.run("worker", "shop", "-q", "jobs,failed")

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_R11_jobs_are_taken_out_of_their_queue_by_name_and_arguments(rig: Rig) -> None:
    for to in ("ann", "bob", "ann"):
        rig.enqueue("Send", to, queue="mail")
    rig.enqueue("note", "ann", queue="mail")

    taken = rig.python("import shop; print(shop.Send.dequeue('ann'), shop.Send.dequeue('nobody'))")

    assert taken.split() == ["2", "0"]
    assert [row["args"] for row in rig.inspector.jobs("mail")] == [["bob"], ["ann"]]
    rig.palermo("dequeue", "shop.Send", "-q", "mail", "--yes")
    assert [row["job"] for row in rig.inspector.jobs("mail")] == ["shop.note"]


def test_R11_peek_size_and_removal_of_a_queue(rig: Rig) -> None:
    ids = [rig.enqueue("note", f"{number}", queue="mail") for number in range(5)]

    assert rig.inspector.size("mail") == 5
    assert [row["id"] for row in rig.inspector.peek("mail")] == ids[:1]
    assert [row["id"] for row in rig.inspector.peek("mail", start=2, count=2)] == ids[2:4]
    assert rig.inspector.delete_queue("mail") == 5
    assert "mail" not in {row["name"] for row in rig.inspector.queues()}
    with pytest.raises(NotFound):
        rig.inspector.size("mail")
    rig.enqueue("note", "again", queue="mail")
    assert rig.inspector.size("mail") == 1


def test_R11_all_workers_are_paused_and_go_on(rig: Rig) -> None:
    workers = [rig.worker(), rig.worker("-c", "2")]
    rig.ready(*workers)

    for worker in workers:
        worker.send(signal.SIGUSR2)
    eventually(lambda: [row["state"] for row in rig.workers()] == ["paused"] * 2)
    rig.enqueue("note", "later")
    # A job that comes while a worker stops taking jobs is given back.
    eventually(lambda: rig.pending() == 1)
    assert rig.lines() == []
    for worker in workers:
        worker.send(signal.SIGCONT)

    assert rig.await_lines(1) == ["later"]


def test_R11_a_pause_of_all_holds_for_workers_and_queues_that_come_later(rig: Rig) -> None:
    refused = rig.run("pause", "*")
    rig.inspector.queues()  # makes the file of the embedded broker
    rig.palermo("pause", "--all")
    rig.enqueue("note", "new", queue="new")

    rig.burst("-q", "*")
    assert rig.lines() == []
    worker = rig.worker("-q", "*")
    rig.palermo("resume", "--all")

    assert rig.await_lines(1) == ["new"]
    assert worker.alive
    (line,) = refused.stderr.splitlines()
    assert refused.returncode == 2
    assert "--all" in line


PUBLISHER = """
import os, shop
confirmed = os.open("confirmed", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for number in range(1_000_000):
    os.write(confirmed, (shop.note.enqueue(f"{number}").id + "\\n").encode())
"""


def test_R13_a_program_killed_while_it_enqueues_leaves_whole_jobs_and_loses_no_confirmed_one(rig: Rig) -> None:
    for round in range(1, 3):
        with subprocess.Popen([sys.executable, "-c", PUBLISHER], env=rig.environment, cwd=rig.path) as publisher:
            rig.await_lines(150 * round, "confirmed")
            publisher.kill()

    waiting = rig.inspector.jobs("jobs", limit=1_000_000)

    confirmed = rig.lines("confirmed")
    # Of each program the very last may be stored and not yet confirmed.
    assert set(confirmed) <= {row["id"] for row in waiting}
    assert len(waiting) - len(confirmed) in (0, 1, 2)
    assert {(row["job"], row["content_type"], len(row["args"])) for row in waiting} == {
        ("shop.note", "application/json", 1)
    }


def test_R13_a_worker_killed_while_it_takes_jobs_leaves_each_in_its_queue_or_done(rig: Rig) -> None:
    calls = [("shop.note", (f"{number}",), {}) for number in range(1_000)]
    for behind in (800, 300):
        # Jobs for both slots that end after the kill: no worker may have done all before it is killed.
        calls[behind:behind] = [("shop.hold", (f"wall {behind}", f"gate {behind}"), {})] * 2
    rig.client.enqueue_many(calls)
    for goal, wall in ((100, 300), (400, 800)):
        worker = rig.worker("-c", "2")
        rig.await_lines(goal)
        for pid in worker.tree():
            os.kill(pid, signal.SIGSTOP)  # nothing of it runs while it is looked at and killed
        worker.kill9()

        left = eventually(lambda: settled(rig))
        ran = noted(rig)
        assert ran | left == {f"{number}" for number in range(1_000)}
        assert len(ran & left) <= 2, "at most the jobs of the two slots are run again"
        rig.open_gate(f"gate {wall}")

    rig.burst("-c", "2")
    assert noted(rig) == {f"{number}" for number in range(1_000)}
    assert rig.failed() == {}


def noted(rig: Rig) -> set[str]:
    return {line for line in rig.lines() if line.isdigit()}


def settled(rig: Rig) -> set[str]:
    """What waits once the dead worker's jobs are back; empty until then."""
    waiting = {row["args"][0] for row in rig.inspector.jobs("jobs", limit=1_010) if row["job"] == "shop.note"}
    return waiting if waiting | noted(rig) >= {f"{number}" for number in range(1_000)} else set()


def test_R11_the_queue_of_failed_jobs_is_empty_before_a_job_failed(rig: Rig) -> None:
    rig.inspector.queues()  # makes the file of the embedded broker, which a command that looks does not
    assert [row["name"] for row in rig.rows("queues")] == ["failed"]
    assert rig.run("jobs", "failed").stderr == "no jobs wait in queue 'failed'.\n"
    assert rig.palermo("purge", "failed", "-y") == "removed 0 jobs from queue failed.\n"
    assert rig.palermo("delete", "failed", "-y") == "removed queue failed with 0 jobs.\n"
    assert "no queue 'other'" in rig.run("delete", "other", "-y").stderr
    assert "no queue 'other'" in rig.run("jobs", "other").stderr
