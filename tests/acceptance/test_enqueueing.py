"""Enqueueing from programs, from the command line and from other systems."""

import subprocess
import sys

from tests.harness.rig import Rig
from tests.helpers import eventually


def test_jobs_enqueued_before_any_worker_ran_run_in_their_order(rig: Rig) -> None:
    for text in ("first", "second"):
        rig.palermo("enqueue", "shop.note", "--args", f'["{text}"]', "-q", "new")
    rig.client.enqueue_many([("shop.note", (f"{number}",), {}) for number in range(500)], queue="new")
    assert rig.pending("new") == 502

    rig.burst("-q", "new")

    assert rig.lines() == ["first", "second", *(f"{number}" for number in range(500))]
    assert rig.pending("new") == 0


def test_a_decorator_a_worker_and_a_doctor_are_enough_to_begin(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    (rig.path / "tiny.py").write_text(
        "import palermo\n\n\n"
        "@palermo.job\n"
        "class Archive:\n"
        "    def process(self, repo, branch='main'):\n"
        "        open('archived', 'a').write(f'{repo} {branch}\\n')\n"
    )

    rig.python("import tiny; tiny.Archive.enqueue('palermo', branch='next')")
    rig.burst(modules=("tiny",))

    assert rig.lines("archived") == ["palermo next"]
    assert rig.palermo("doctor").splitlines()[-1].startswith("0 problems")


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

    waiting = {row["id"]: row for row in rig.inspector.jobs("jobs", limit=1_000_000)}

    confirmed = rig.lines("confirmed")
    assert [id for id in waiting if id in set(confirmed)] == confirmed
    # Of each program the very last job may be stored and not yet confirmed.
    assert len(waiting) - len(confirmed) in (0, 1, 2)
    assert {(row["job"], row["content_type"], len(row["args"])) for row in waiting.values()} == {
        ("shop.note", "application/json", 1)
    }


def test_a_job_enqueued_by_name_is_as_unique_as_its_worker_declares(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    rig.burst(modules=("singles",))
    first = rig.run("enqueue", "singles.sync", "--args", '["eu"]')
    again = rig.run("enqueue", "singles.sync", "--kwargs", '{"full": false, "shop": "eu"}')
    in_code = rig.python("import palermo, singles; print(singles.sync.enqueue('eu').id)")

    assert first.stdout == again.stdout == in_code
    assert "waiting" in again.stderr

    (rig.path / "singles.py").write_text("import palermo\n\n@palermo.job\ndef sync(shop):\n    pass\n")
    rig.burst(modules=("singles",), PYTHONPATH=f"{rig.path}:{rig.environment['PYTHONPATH']}")

    assert [bool(rig.client.enqueue("singles.sync", ["eu"])) for _ in range(2)] == [True, True]


def test_a_default_job_takes_what_another_program_publishes(rabbitmq_rig: Rig) -> None:
    rig = rabbitmq_rig
    rig.ready(rig.worker("-c", "2", modules=("defaults",)))

    rig.put("event_queue", b'{"event_name": "made", "payload": {"id": 7}}')
    rig.put("event_queue", b'{"event_name": "broken", "payload": "no"}')
    rig.put("octets", b"\xff[")
    rig.put("texts", "1 €".encode())

    rig.await_lines(3)
    ((id, row),) = eventually(rig.failed).items()
    assert (row["job"], row["kwargs"]) == ("defaults.handle", {"event_name": "broken", "payload": "no"})
    rig.open_gate("mended")
    rig.palermo("failed", "requeue", id)
    assert sorted(rig.await_lines(4)) == [
        "defaults.handle: broken 'no'",
        "defaults.handle: made {'id': 7}",
        "octets: b'\\xff['",
        "texts: '1 €'",
    ]
