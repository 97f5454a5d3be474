"""A worker whose log is a pipe that nothing reads, and the buffer of its lines."""

import os
import signal
import subprocess

import pytest

from palermo.worker.logs import LineWriter
from tests.harness.rig import COMMAND, Rig
from tests.helpers import HANGS, eventually


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["process", "async"])
def test_a_worker_whose_log_nothing_reads_works_on_and_obeys_term(rig: Rig, pool: str) -> None:
    for number in range(600):  # two lines each: three times what a pipe holds
        rig.enqueue("note", str(rig.notes_path), str(number))
    command = [COMMAND, "worker", "crew", "--pool", pool, "--log-level", "debug"]

    with subprocess.Popen(command, env=rig.environment, stderr=subprocess.PIPE) as worker:
        try:
            eventually(lambda: len(rig.lines()) == 600)
            eventually(lambda: [row["state"] for row in rig.workers()] == ["idle"])
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(HANGS) == 0
        finally:
            worker.kill()


def test_lines_that_find_the_buffer_full_are_dropped_and_counted() -> None:
    reading, writing = os.pipe()
    writer = LineWriter(writing, lambda count: f"dropped {count}", buffer=10_000)
    for number in range(100_000):
        writer.put(str(number))

    kept, dropped = list[str](), 0
    with os.fdopen(reading) as file:
        while len(kept) + dropped < 100_000:
            word, _, count = file.readline().strip().partition(" ")
            dropped += int(count or 0)
            kept += [] if count else [word]
        writer.drain(10)
        writer.put("the next")
        after = file.readline().strip()
    writer.drain(10)
    os.close(writing)

    assert dropped > 0
    assert kept[:100] == [str(number) for number in range(100)]
    assert after == "the next"


def test_a_worker_that_ends_has_written_its_whole_log(rig: Rig) -> None:
    for number in range(200):
        rig.enqueue("note", str(rig.notes_path), str(number))

    log = rig.burst()

    assert log.count("slot=1 duration=") == 200
    assert "worker stopped" in log.splitlines()[-1]
