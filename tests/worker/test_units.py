"""A worker's small parts: titles, pauses, options, the threads of jobs, the pidfile and the table of signals."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from palermo.blocked_signals import OBEYED
from palermo.client.failed_queues import retention_judge
from palermo.contract.sweep import Keep, Remove, Stop
from palermo.core.failure import Failure
from palermo.core.message import Message
from palermo.errors import SettingInvalid
from palermo.settings.settings import Settings
from palermo.worker.child.shared_slots import JobThreads
from palermo.worker.limits import Limits
from palermo.worker.options import WorkerOptions
from palermo.worker.parent.broker_session import backoff
from palermo.worker.parent.pidfile import pidfile
from palermo.worker.process import SlotTitle
from palermo.worker.signals import DUMP, RESQUE_SIGNALS, SIGNALS, SURVIVED, TERMINATE, Action, describe_status
from tests.helpers import eventually


@pytest.mark.parametrize(
    ("attempt", "chance", "seconds"),
    [(1, 0.0, 0.25), (1, 1.0, 0.5), (4, 1.0, 4.0), (7, 0.0, 15.0), (10_000, 1.0, 30.0)],
)
def test_pauses_double_up_to_30_seconds_and_half_is_chance(attempt: int, chance: float, seconds: float) -> None:
    assert backoff(attempt, chance) == seconds


def test_a_slots_title_names_its_job_unless_there_are_hundreds_a_second() -> None:
    shown: list[str] = []
    title = SlotTitle(1, show=shown.append)

    title.working("shop.mail.send", "7c9e", 0.0)
    assert title.stale
    title.idle()
    assert not title.stale
    for number in range(500):
        title.working("job", str(number), 7 + number / 1_000)
    title.working("job", "next", 8.0)

    assert shown[0].startswith("palermo slot 1: shop.mail.send 7c9e since ")
    assert shown[1] == "palermo slot 1: idle"
    assert shown[-2] == "palermo slot 1: many short jobs"
    assert "job next since" in shown[-1]
    assert len(shown) < 30


def _failed(at: int | None) -> Message:
    failure = None if at is None else Failure(exception_class="E", message="", stack_trace="", failed_at=at)
    return Message(id="1", queue="q", job="j", failure=failure)


@pytest.mark.parametrize(
    ("surplus", "before", "verdicts"),
    [
        (2, None, [Remove(), Remove(), Stop()]),
        (0, 150.0, [Remove(), Stop()]),
        (2, 150.0, [Remove(), Remove(), Stop()]),
        (-3, 250.0, [Remove(), Remove(), Stop()]),
    ],
)
def test_failed_jobs_go_by_number_and_by_age_until_one_stays(
    surplus: int, before: float | None, verdicts: list[object]
) -> None:
    decide = retention_judge(surplus, before)

    found = [decide(_failed(at)) for at in (100, 200, 300)]

    assert found[: len(verdicts)] == verdicts
    assert retention_judge(0, 150.0)(_failed(None)) == Keep()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"concurrency": 0}, "at least one slot"),
        ({"modules": ()}, "no module given"),
        ({"shutdown_timeout": -1.0}, "shutdown timeout"),
        ({"pool": "fibre"}, "pool is 'fibre'"),
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, object], text: str) -> None:
    options = {"settings": Settings(url="sqlite:///x.db"), "modules": ("shop",), **wrong}

    with pytest.raises(SettingInvalid, match=text):
        WorkerOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_jobs", 0), ("max_memory", float("nan")), ("max_lifetime", 0.0), ("timeout", 0.0), ("timeout_grace", -1.0)],
)
def test_limits_that_make_no_sense_are_refused(name: str, value: float) -> None:
    with pytest.raises(SettingInvalid, match=name.replace("_", " ")):
        Limits(**{name: value})  # type: ignore[arg-type]


def test_a_long_job_keeps_none_of_the_others_waiting() -> None:
    threads, gate, done = JobThreads(3), threading.Event(), list[int]()

    threads.put(gate.wait)
    threads.put(gate.wait)
    for number in range(50):
        threads.put(lambda number=number: done.append(number))  # type: ignore[misc]
        eventually(lambda number=number: done[-1:] == [number])  # type: ignore[misc]
    gate.set()


def test_as_many_threads_are_started_and_run_at_once_as_there_are_slots() -> None:
    threads, together, done = JobThreads(4), threading.Barrier(4), list[str]()

    def meet() -> None:
        together.wait(60)
        done.append(threading.current_thread().name)

    for _ in range(20):
        before = len(done)
        for _ in range(4):
            threads.put(meet)
        eventually(lambda before=before: len(done) == before + 4)  # type: ignore[misc]

    assert len(set(done)) == 4


def test_all_that_is_given_is_done_whatever_the_threads_do_meanwhile() -> None:
    threads, chance, free = JobThreads(4), Random(7), threading.Semaphore(4)
    done: list[int] = []

    def work(number: int, seconds: float) -> Callable[[], None]:
        def run() -> None:
            if seconds:
                threading.Event().wait(seconds)
            done.append(number)
            free.release()

        return run

    for number in range(2_000):
        assert free.acquire(timeout=60)
        threads.put(work(number, 0.002 * (chance.random() < 0.05)))

    eventually(lambda: sorted(done) == list(range(2_000)))


def test_it_holds_the_pid_while_the_worker_lives_and_a_second_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "worker.pid"

    with pidfile(str(path)):
        with pytest.raises(SettingInvalid, match=f"pid {os.getpid()}"), pidfile(str(path)):
            pass
        assert path.read_text() == f"{os.getpid()}\n"
        assert list(tmp_path.iterdir()) == [path]

    assert not path.exists()


def test_what_a_killed_worker_left_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "worker.pid"
    program = (
        "from palermo.worker.parent.pidfile import pidfile; import os;"
        f" held = pidfile({str(path)!r}); held.__enter__(); os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", program], check=False)
    assert path.exists()

    with pidfile(str(path)):
        assert path.read_text() == f"{os.getpid()}\n"


def test_a_file_that_another_wrote_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "worker.pid"

    with pidfile(str(path)):
        path.unlink()
        path.write_text("1\n")

    assert path.read_text() == "1\n"


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_or_a_place_where_no_file_can_be_is_refused(tmp_path: Path, exists: bool) -> None:
    theirs = tmp_path / "theirs"
    if exists:
        theirs.write_text("precious")
    (tmp_path / "worker.pid").symlink_to(theirs)

    with pytest.raises(SettingInvalid, match="symbolic link"), pidfile(str(tmp_path / "worker.pid")):
        pass
    with pytest.raises(SettingInvalid, match="cannot be written: No such file"), pidfile(str(tmp_path / "no" / "pid")):
        pass

    assert (theirs.read_text() if exists else theirs.exists()) == ("precious" if exists else False)


def test_every_action_has_a_signal_and_every_signal_one_meaning() -> None:
    assert {row.action for row in (*SIGNALS, *RESQUE_SIGNALS)} == set(Action) - {Action.WAKE}  # orders.py has that
    assert len({row.name for row in SIGNALS}) == len(SIGNALS)
    assert {row.name for row in RESQUE_SIGNALS} < {row.name for row in SIGNALS}
    assert all(row.meaning for row in SIGNALS)
    # Those that wait while a worker starts, and those that would end a child by mistake.
    assert {row.number for row in SIGNALS} == set(OBEYED) <= {*SURVIVED, signal.SIGCONT}
    assert len({DUMP, TERMINATE, *SURVIVED}) == 2 + len(SURVIVED), "what the parent tells a slot is none of them"


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (3, "exited with status 3"),
        (0, "exited with status 0"),
        (-signal.SIGSEGV, "was killed by SIGSEGV (segmentation fault)"),
        (-signal.SIGABRT, "was killed by SIGABRT (aborted)"),
        (-signal.SIGKILL, "was killed by SIGKILL: out of memory, or kill -9"),
        (-250, "was killed by signal 250"),
    ],
)
def test_an_end_is_told_by_signal_or_status(status: int, text: str) -> None:
    assert describe_status(status) == text


UNDER_FIRE = """
import os, subprocess, sys
from palermo.event_loop import new_event_loop
from palermo.worker.signals import ignore_signals, listen

loop = new_event_loop()
listen(loop, lambda row: None)
fire = "import os, sys\\nwhile True:\\n for number in (2, 15): os.kill(int(sys.argv[1]), number)"
source = subprocess.Popen([sys.executable, "-c", fire, str(os.getpid())], start_new_session=True)

async def end_many_times():
    for _ in range(1_000):
        ignore_signals(loop)
        listen(loop, lambda row: None)
    ignore_signals(loop)

loop.run_until_complete(end_many_times())
loop.close()
source.kill()
source.wait()
"""


def test_a_process_that_begins_to_ignore_signals_dies_of_none() -> None:
    """A worker that had stopped well died of one more Ctrl-C: asyncio restores the defaults of the signals it drops."""
    ended = subprocess.run([sys.executable, "-c", UNDER_FIRE], capture_output=True, timeout=120, check=False)

    assert (ended.returncode, ended.stderr) == (0, b"")
