"""The signal table, and how the end of a process is told."""

import signal
import subprocess
import sys

import pytest

from palermo.blocked_signals import OBEYED
from palermo.worker.signals import DUMP, RESQUE_SIGNALS, SIGNALS, SURVIVED, TERMINATE, Action, describe_status


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


@pytest.mark.slow
def test_a_process_that_begins_to_ignore_signals_dies_of_none() -> None:
    """A worker that had stopped well died of one more Ctrl-C: asyncio restores the defaults of the signals it drops."""
    ended = subprocess.run([sys.executable, "-c", UNDER_FIRE], capture_output=True, timeout=120, check=False)

    assert (ended.returncode, ended.stderr) == (0, b"")
