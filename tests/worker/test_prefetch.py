"""`--prefetch`, by whole workers: a job that waits in a slot is neither lost nor run twice."""

import os
import signal
from collections import Counter

import pytest

from tests.harness.rig import Rig
from tests.helpers import eventually

#: Other brokers send no jobs in advance.
pytestmark = pytest.mark.parametrize("any_rig", ["rabbitmq"], indirect=True)


def numbers(count: int) -> list[str]:
    return [f"{number:04}" for number in range(count)]


@pytest.mark.slow
def test_jobs_that_a_killed_worker_held_run_elsewhere_once(any_rig: Rig) -> None:
    for number in numbers(600):
        any_rig.enqueue("note", str(any_rig.notes_path), number)
    killed = any_rig.worker("--prefetch", "16", "-q", "jobs", "--log-level", "error")
    eventually(lambda: len(any_rig.lines()) > 50)
    os.kill(killed.pid, signal.SIGKILL)
    # Otherwise the burst could end before the broker requeues the jobs of the killed worker.
    eventually(lambda: any_rig.pending() + len(set(any_rig.lines())) >= 600)
    any_rig.burst("--prefetch", "16", "-q", "jobs")

    counted = Counter(any_rig.lines())
    assert sorted(counted) == numbers(600)
    # Only jobs whose acknowledgements were on their way when the worker was killed may run twice.
    assert sum(counted.values()) <= 600 + 16
    assert any_rig.errors() == {}
