"""The client in whole processes: forks, and how a program ends."""

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests import redis_node

TASKS = """
import os, sys, threading, time
import palermo
@palermo.job(name="resize")
def resize(path): ...
palermo.connect("{url}")
"""


def python(source: str, tmp_path: Path, *, timeout: float = 60) -> str:
    """What a program prints that has a job; it must end well and complain of nothing."""
    return run_program(TASKS + source, tmp_path, timeout=timeout)


def run_program(source: str, tmp_path: Path, *, url: str = "", timeout: float = 60, shell: str = "") -> str:
    """What a program prints; it must end well and complain of nothing. `shell` is what a shell redirects for it."""
    url = url or f"sqlite:///{tmp_path}/jobs.db"
    script = tmp_path / "program.py"
    script.write_text(source.replace("{url}", url))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PALERMO_")}
    with subprocess.Popen(
        ["sh", "-c", f'exec "$0" -W error "$1" {shell}', sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment | {"PALERMO_URL": url},
        process_group=0,
    ) as run:
        try:
            out, errors = run.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)  # a forked child that hangs, too
            raise
    assert (run.returncode, errors) == (0, "")
    return out


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
    python(source, tmp_path)


def test_a_forked_child_enqueues_on_a_session_of_its_own(tmp_path: Path) -> None:
    source = """
import multiprocessing
resize.enqueue("parent")
for number in range(3):
    pid = os.fork()
    if pid == 0:
        resize.enqueue("child")
        sys.exit(0)
    resize.enqueue("parent")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
resize.enqueue("parent")
child = multiprocessing.get_context("fork").Process(target=resize.enqueue, args=("child",))
child.start()
child.join()
print(child.exitcode, palermo.inspector().queues.size("jobs"))
"""
    assert python(source, tmp_path) == "0 9\n"


@pytest.mark.slow
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
print(len({row["id"] for row in palermo.inspector().jobs.list("jobs", limit=1_000)}))
"""
    assert python(source, tmp_path) == "805\n"


@pytest.mark.parametrize(
    ("imported", "awaited", "on_redis"),
    [
        ("palermo", "palermo.core.", False),
        ("logging, concurrent.futures.thread, palermo", "palermo.core.", False),
        # The client's own thread imports it with the first session.
        ("palermo", "redis.asyncio", True),
    ],
)
def test_a_fork_during_the_first_enqueue_of_a_thread_does_not_hang(
    imported: str, awaited: str, on_redis: bool, tmp_path: Path
) -> None:
    source = f"""
import os, sys, threading, time
import {imported}
before = set(sys.modules)
threading.Thread(target=lambda: palermo.enqueue("resize", ("thread",))).start()
while not any(name.startswith("{awaited}") for name in set(sys.modules) - before):  # it is within the import
    time.sleep(0)
pid = os.fork()
if pid == 0:
    palermo.enqueue("resize", ("child",))
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    with redis_node.running() if on_redis else nullcontext() as redis:
        assert run_program(source, tmp_path, url=redis.url if redis else "") == "0\n"


def test_the_first_enqueue_imports_nothing_that_a_fork_does_not_wait_for(tmp_path: Path) -> None:
    source = """
from palermo.client import forking
unguarded = []
def watch(event, args):
    # The client's own thread rests during a fork, so it is within no import.
    mine = threading.current_thread() is threading.main_thread()
    if event == "import" and args[0] not in sys.modules and mine and not forking.guard._is_owned():
        unguarded.append(args[0])
sys.addaudithook(watch)
resize.enqueue("x")
resize.options(unique="until_done").enqueue("x")
resize.enqueue_many([("x",)])
palermo.publish("shop.opened", {})
print(unguarded)
"""
    assert python(source, tmp_path) == "[]\n"


#: A thread that enqueues once the main one is over.
OUTLIVING = "threading.Thread(target=lambda: (threading.main_thread().join(), enqueue())).start()"


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ("", "atexit.register(enqueue)"),
        ("palermo.job(name='y')(lambda: 0)", OUTLIVING),
        ("palermo.enqueue('resize', ('x',))", OUTLIVING),
    ],
)
def test_an_enqueue_of_a_program_that_is_ending_stores_the_job(first: str, later: str, tmp_path: Path) -> None:
    source = f"""
import atexit, threading
import palermo
def enqueue():
    print(bool(palermo.enqueue("resize", ("x",))))
{first}
{later}
"""
    assert run_program(source, tmp_path) == "True\n"


def test_a_failed_name_lookup_in_an_ending_program_is_a_palermo_error(tmp_path: Path) -> None:
    source = """
import atexit, sys
import palermo
sys.modules["uvloop"] = None  # asyncio looks names up in threads
def enqueue():
    try:
        resize.enqueue("x")
    except palermo.PalermoError as error:
        print(error)
atexit.register(enqueue)
palermo.connect("amqp://localhost:1", publish_timeout=0.5)
resize = palermo.job(name="resize")(lambda path: 0)
"""
    assert "Enqueue earlier" in run_program(source, tmp_path)


@pytest.mark.parametrize("shell", ["2>&-", "<&- >&- 2>&-"])
def test_a_program_started_without_a_standard_stream_enqueues(shell: str, tmp_path: Path) -> None:
    run_program(TASKS + 'resize.enqueue("x")', tmp_path, shell=shell)

    assert (tmp_path / "jobs.db").exists()
