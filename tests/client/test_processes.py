"""The client in whole processes: what an import costs, forks, and how a program ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import Stopwatch

HEAVY = ("asyncio", "click", "fastapi", "importlib.metadata", "msgpack", "pika", "rich", "sqlite3", "ssl", "uvloop")

TASKS = """
import os, sys, threading, time
import palermo
@palermo.job(name="resize")
def resize(path): ...
palermo.connect("{url}")
"""


def python(source: str, tmp_path: Path, *, timeout: float = 60) -> str:
    """What a program prints; it must end well and complain of nothing."""
    script = tmp_path / "program.py"
    script.write_text((TASKS + source).replace("{url}", f"sqlite:///{tmp_path}/jobs.db"))
    run = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={name: value for name, value in os.environ.items() if not name.startswith("PALERMO_")},
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout


def test_declaring_jobs_imports_nothing_heavy() -> None:
    declared = "import palermo, sys; palermo.job(lambda: 0, name='x')"
    source = f"{declared}; print([name for name in {HEAVY} if name in sys.modules])"

    assert subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_package_says_what_it_has_and_what_it_has_not() -> None:
    import palermo

    assert all(getattr(palermo, name) is not None for name in palermo.__all__)
    assert set(palermo.__all__) <= set(dir(palermo))
    with pytest.raises(AttributeError, match="module 'palermo' has no attribute 'nothing'"):
        palermo.nothing  # noqa: B018


def test_a_program_that_enqueued_ends_at_once(tmp_path: Path) -> None:
    watch = Stopwatch()

    python('resize.enqueue("x")', tmp_path)

    assert watch.seconds() < 30


def test_a_program_ends_while_its_daemon_threads_still_enqueue(tmp_path: Path) -> None:
    source = """
def work():
    while True:
        try:
            resize.enqueue("x")
        except palermo.PalermoError:
            return
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
"""
    watch = Stopwatch()

    python(source, tmp_path)

    assert watch.seconds() < 30


def test_a_thread_that_outlives_the_main_one_goes_on_enqueuing(tmp_path: Path) -> None:
    source = """
resize.enqueue("x")
def work():
    threading.main_thread().join()
    print(bool(resize.enqueue("x")))
threading.Thread(target=work).start()
"""
    assert python(source, tmp_path) == "True\n"


def test_a_forked_child_enqueues_on_a_session_of_its_own(tmp_path: Path) -> None:
    source = """
resize.enqueue("parent")
for number in range(3):
    pid = os.fork()
    if pid == 0:
        resize.enqueue("child")
        sys.exit(0)
    resize.enqueue("parent")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
resize.enqueue("parent")
print(palermo.inspector().size("jobs"))
"""
    assert python(source, tmp_path) == "8\n"


def test_a_child_forked_while_threads_enqueue_does_not_hang(tmp_path: Path) -> None:
    # Each of them may wait long for its turn to write into the file, which is then logged.
    source = """
import logging
logging.disable(logging.WARNING)
palermo.connect("{url}", publish_timeout=60)
def work():
    for _ in range(200):
        resize.enqueue("x")
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
children = []
for _ in range(5):
    pid = os.fork()
    if pid == 0:
        resize.enqueue("child")
        os._exit(0)
    children.append(pid)
for pid in children:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
for thread in threads:
    thread.join()
# A job that was being stored at a fork may be there twice.
print(len({row["id"] for row in palermo.inspector().jobs("jobs", limit=1_000)}))
"""
    assert python(source, tmp_path) == "805\n"


def test_a_process_of_multiprocessing_enqueues(tmp_path: Path) -> None:
    source = """
import multiprocessing
resize.enqueue("parent")
child = multiprocessing.get_context("fork").Process(target=resize.enqueue, args=("child",))
child.start()
child.join()
print(child.exitcode, palermo.inspector().size("jobs"))
"""
    assert python(source, tmp_path) == "0 2\n"


def test_python_m_palermo_is_the_command() -> None:
    run = subprocess.run([sys.executable, "-m", "palermo", "--help"], capture_output=True, text=True, check=False)

    assert (run.returncode, run.stderr) == (0, "")
    assert "worker" in run.stdout
