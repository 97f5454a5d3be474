"""Jobs for later, whatever the clock, the line and the crowd of other jobs do."""

import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from palermo.core.address import parse_url
from tests.harness.rig import Rig
from tests.helpers import Stopwatch, eventually
from tests.scale import scaled
from tests.tcp_proxy import TcpProxy

HOUR = 3_600.0


def stamps(rig: Rig, count: int) -> dict[str, float]:
    """When each of so many jobs ran."""
    return {text: float(at) for text, at in (line.split() for line in rig.await_lines(count))}


def delayed(rig: Rig, text: str, delay: float) -> float:
    """Enqueue a job that is due after this many seconds; the earliest instant that it may run at."""
    due = time.time() + delay
    rig.client.enqueue("timed.stamp", (text,), delay=delay)
    return due


def waiting(rig: Rig) -> list[str]:
    return [row["args"][0] for row in rig.inspector.scheduled()]


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

    ran = stamps(rig, 4)
    assert all(0 <= ran[text] - at < 1 + watch.stalled() for text, at in due.items())
    # A leader lets go of a job after it has handed it over.
    eventually(lambda: rig.inspector.scheduled(limit=1).total == crowd + 1)
    assert resident() - before < 8_000
    (last,) = rig.inspector.scheduled(offset=crowd, limit=1)
    assert abs(datetime.fromisoformat(last["run_at"]).timestamp() - far) < 1 + watch.stalled()


def test_a_lost_connection_loses_no_delayed_job_and_runs_none_early(rabbitmq_rig: Rig) -> None:
    rig = rabbitmq_rig
    ((host, port),) = parse_url(rig.url).hosts
    with TcpProxy(host, port) as proxy:
        through = rig.url.replace(f"{host}:{port}", f"127.0.0.1:{proxy.port}")
        worker = rig.worker(modules=("timed",), PALERMO_URL=through)
        eventually(lambda: any(row["clock"] for row in rig.workers()))
        # None is on its way when the line is cut, even if the machine stands still for some seconds before.
        due = {f"job-{number}": delayed(rig, f"job-{number}", 6 + number / 20) for number in range(20)}

        proxy.hang_up(reset=True)

        ran = stamps(rig, len(due))
        assert "connection lost" in worker.log
        assert len(rig.lines()) == len(due)
        assert all(ran[text] >= at for text, at in due.items())


class WallClock:
    """The clock of a worker's machine, which a test sets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(0)

    def set(self, wrong_by: float) -> None:
        """Have it go wrong by this many seconds from now on."""
        new = self.path.with_suffix(".new")
        new.write_text(str(wrong_by))
        os.replace(new, self.path)


def test_a_clock_that_jumps_runs_due_jobs_at_once_and_none_early(rig: Rig) -> None:
    clock = WallClock(rig.path / "clock")
    rig.ready(rig.worker(program="misled.py", modules=("shop",), CLOCK=str(clock.path)))
    # Long enough for the clock to be set in time.
    due = time.time() + 6
    rig.enqueue("note", "soon", delay=6)
    clock.set(-HOUR)
    eventually(lambda: time.time() > due + 1)
    rig.enqueue("note", "now")
    assert rig.await_lines(1) == ["now"]
    eventually(lambda: waiting(rig) == ["soon"])

    clock.set(0)

    assert rig.await_lines(2) == ["now", "soon"]

    for text, delay in (("in an hour", HOUR), ("in two days", 48 * HOUR)):
        rig.enqueue("note", text, delay=delay)
    clock.set(HOUR + 1)

    assert rig.await_lines(3)[2:] == ["in an hour"]
    eventually(lambda: waiting(rig) == ["in two days"])


def test_delayed_jobs_are_seen_moved_run_and_cancelled_by_commands(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    later = (datetime.now(UTC) + timedelta(hours=2)).isoformat(timespec="seconds")
    for text, *when in (("moved", "--in", "1h"), ("run", "--at", later), ("cancelled", "--in", "2d")):
        rig.palermo("enqueue", "timed.stamp", "--args", json.dumps([text]), *when)
    rows = {row["args"][0]: row for row in rig.rows("scheduled", "list")}
    assert list(rows) == ["moved", "run", "cancelled"]
    rig.python(
        "import datetime as dt, timed; timed.stamp.enqueue_in(0.5, 'in');"
        "timed.stamp.enqueue_at(dt.datetime.now(dt.UTC) + dt.timedelta(days=40), 'kept')"
    )

    rig.palermo("scheduled", "move", rows["moved"]["id"], "--in", "1s")
    rig.palermo("scheduled", "run", rows["run"]["id"])
    rig.palermo("scheduled", "cancel", rows["cancelled"]["id"])
    rig.worker(modules=("timed",))

    assert set(stamps(rig, 3)) == {"in", "moved", "run"}
    eventually(lambda: [row["args"] for row in rig.rows("scheduled", "list")] == [["kept"]])
    rig.palermo("scheduled", "cancel", rows["run"]["id"], code=4)
