"""A program that is killed while it enqueues."""

import subprocess
import sys

from tests.harness.rig import Rig

PUBLISHER = """
import os, shop
confirmed = os.open("confirmed", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for number in range(1_000_000):
    os.write(confirmed, (shop.note.enqueue(f"{number}").id + "\\n").encode())
"""


def test_a_program_killed_while_it_enqueues_loses_no_confirmed_job(rig: Rig) -> None:
    for round in range(1, 3):
        with subprocess.Popen([sys.executable, "-c", PUBLISHER], env=rig.environment, cwd=rig.path) as publisher:
            rig.await_lines(150 * round, "confirmed")
            publisher.kill()

    waiting = {row["id"]: row for row in rig.inspector.jobs.list("jobs", limit=1_000_000)}

    confirmed = rig.lines("confirmed")
    assert [id for id in waiting if id in set(confirmed)] == confirmed
    # Of each program the very last job may be stored and not yet confirmed.
    assert len(waiting) - len(confirmed) in (0, 1, 2)
    assert {(row["job"], row["content_type"], len(row["args"])) for row in waiting.values()} == {
        ("shop.note", "application/json", 1)
    }
