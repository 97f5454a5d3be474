"""Jobs for later, whatever the clock and the crowd of other jobs do."""

import os
import time
from datetime import datetime
from pathlib import Path

from tests.harness.rig import Rig
from tests.helpers import Stopwatch, eventually
from tests.scale import scaled

HOUR = 3_600.0


def delayed(rig: Rig, text: str, delay: float) -> float:
    """Enqueue a job that is due after this many seconds; the earliest instant that it may run at."""
    due = time.time() + delay
    rig.client.enqueue("timed.stamp", (text,), delay=delay)
    return due


def test_a_job_due_soon_is_on_time_beside_thousands_due_later(rig: Rig) -> None:
    watch = Stopwatch()
    worker = rig.worker("-c", "2", modules=("timed",))

    def resident() -> int:
        """Kilobytes of memory of the worker's parent."""
        return int(Path(f"/proc/{worker.pid}/status").read_text().split("VmRSS:")[1].split()[0])

    # It leads from then on, for which it needs some memory.
    delayed(rig, "warm", 0.1)
    rig.await_lines(1)
    before = resident()
    crowd = scaled(2_500, 100_000)
    rig.client.enqueue_many([("timed.stamp", (f"{n}",), {}) for n in range(crowd)], run_at=time.time() + 24 * HOUR)
    far = delayed(rig, "far", 10 * 366 * 24 * HOUR)

    due = {text: delayed(rig, text, delay) for text, delay in (("now", 0), ("soon", 1), ("sooner", 0.777))}

    ran = {text: float(at) for text, at in (line.split() for line in rig.await_lines(4))}
    assert all(0 <= ran[text] - at < 1 + watch.stalled() for text, at in due.items())
    # A leader lets go of a job after it has handed it over.
    eventually(lambda: rig.inspector.scheduled.list(limit=1).total == crowd + 1)
    assert resident() - before < 8_000
    (last,) = rig.inspector.scheduled.list(offset=crowd, limit=1)
    assert abs(datetime.fromisoformat(last["run_at"]).timestamp() - far) < 1 + watch.stalled()


def test_a_clock_that_jumps_runs_due_jobs_at_once_and_none_early(rig: Rig) -> None:
    def wrong_by(seconds: float) -> None:
        """Have the clock of the worker's machine go wrong by this from now on."""
        (rig.path / "new").write_text(str(seconds))
        os.replace(rig.path / "new", rig.path / "clock")

    def waiting() -> list[str]:
        return [row["args"][0] for row in rig.inspector.scheduled.list()]

    wrong_by(0)
    rig.ready(rig.worker(program="misled.py", modules=("shop",), CLOCK=str(rig.path / "clock")))
    # Long enough for the clock to be set in time.
    due = time.time() + 4
    rig.enqueue("note", "soon", delay=4)
    wrong_by(-HOUR)
    eventually(lambda: time.time() > due + 1)
    rig.enqueue("note", "now")
    assert rig.await_lines(1) == ["now"]
    eventually(lambda: waiting() == ["soon"])

    wrong_by(0)

    assert rig.await_lines(2) == ["now", "soon"]

    for text, delay in (("in an hour", HOUR), ("in two days", 48 * HOUR)):
        rig.enqueue("note", text, delay=delay)
    wrong_by(HOUR + 1)

    assert rig.await_lines(3)[2:] == ["in an hour"]
    eventually(lambda: waiting() == ["in two days"])
