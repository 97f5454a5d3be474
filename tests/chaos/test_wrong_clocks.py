"""Machines whose clocks differ by minutes, and whose leaders are killed in turn: nothing twice, nothing lost."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.records import runs
from tests.harness.processes import WorkerProcess
from tests.harness.rig import PROGRAMS, Rig
from tests.helpers import eventually

#: Seconds by which the clocks of the machines are wrong.
CLOCKS = (90.0, -90.0, 0.0)

JOBS = 30


@pytest.fixture
def rig(rabbitmq_url: str, exchange: str, tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, rabbitmq_url, exchange, module="shop") as rig:
        yield rig


def machine(rig: Rig, wrong_by: float, *more: str) -> WorkerProcess:
    clock = rig.path / f"clock {wrong_by}"
    clock.write_text(str(wrong_by))
    return rig.worker(*more, modules=("soaked", "mixed"), program="misled.py", CLOCK=str(clock), SOAK_RECURS="1")


def leader(rig: Rig) -> int:
    return next((int(row["pid"]) for row in rig.workers() if row["clock"]), 0)


def enqueue(rig: Rig, numbers: range) -> None:
    for number in numbers:
        job = ("soaked.work", (number, 0.0, False))
        match number % 3:
            case 0:
                rig.client.enqueue(*job, delay=1.0)
            case 1:
                rig.client.enqueue(*job, tenant=f"tenant {number % 2}")
            case 2:
                rig.client.enqueue(*job, unique="until_done", unique_key=f"{number}")


def test_wrong_clocks_double_and_skip_no_duty_of_the_leader(rig: Rig) -> None:
    runner = rig.worker("--no-scheduler", "-q", "jobs,calls", modules=("soaked", "mixed"), SOAK_RECURS="1")
    keepers = {}
    for wrong_by in CLOCKS:
        worker = machine(rig, wrong_by, "-q", "idle")
        keepers[worker.pid] = worker
    rig.ready(runner, *keepers.values())
    sent = 0

    def ran() -> Counter[int]:
        return Counter(run.number for run in runs(rig.lines("runs")))

    def prompt() -> int:
        """How many jobs without a delay ran: a delayed one waits for as long as a clock that leads is behind."""
        return sum(number % 3 != 0 for number in ran())

    for _ in CLOCKS:
        first = eventually(lambda: leader(rig))
        enqueue(rig, range(sent, sent + JOBS))
        sent += JOBS
        if len(keepers) > 1:
            eventually(lambda: prompt() == sent - sent // 3)  # noqa: B023
            keepers.pop(first).kill9()
            eventually(lambda first=first: leader(rig) not in (0, first))  # type: ignore[misc]

    eventually(lambda: len(ran()) == sent)

    ticks = Counter(run.number for run in runs(rig.lines("ticks")))
    assert {number: times for number, times in ran().items() if times != 1} == {}
    assert {tick: times for tick, times in ticks.items() if times != 1} == {}
    assert rig.errors() == {}
    eventually(lambda: rig.inspector.unique_keys() == [])


@pytest.mark.parametrize("wrong_by", [90.0, -90.0])
def test_a_job_of_a_machine_with_another_clock_can_be_cancelled(rig: Rig, wrong_by: float) -> None:
    rig.ready(rig.worker())
    rig.enqueue("hold", "first")
    rig.await_lines(1)
    clock = rig.path / "clock"
    clock.write_text(str(wrong_by))
    enqueued = subprocess.run(
        [sys.executable, str(PROGRAMS / "misled.py"), "enqueue", "shop.note", "--args", '["to be cancelled"]'],
        env={**rig.environment, "CLOCK": str(clock)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    rig.palermo("cancel", enqueued.stdout.strip())
    rig.enqueue("note", "last")
    rig.open_gate()

    assert rig.await_lines(3)[1:] == ["first ends", "last"]
