"""`--prefetch`, by whole workers: a job that waits in a slot is neither lost nor run twice."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.rig import Rig
from tests.helpers import eventually


@pytest.fixture
def rig(rabbitmq_url: str, tmp_path: Path, exchange: str) -> Iterator[Rig]:
    """On RabbitMQ, because other brokers send no jobs in advance."""
    rig = Rig(tmp_path, url=rabbitmq_url, exchange=exchange)
    yield rig
    rig.close()


def numbers(count: int) -> list[str]:
    return [f"{number:04}" for number in range(count)]


@pytest.mark.parametrize("pool", ["process", "async"])
def test_short_jobs_keep_their_order_and_each_runs_once(rig: Rig, pool: str) -> None:
    for number in numbers(400):
        rig.enqueue("note", str(rig.notes_path), number)

    rig.burst("--pool", pool, "--prefetch", "16", "-q", "jobs")

    assert rig.lines() == numbers(400)


def test_jobs_that_a_killed_worker_held_run_elsewhere_once(rig: Rig) -> None:
    for number in numbers(600):
        rig.enqueue("note", str(rig.notes_path), number)
    killed = rig.worker("--prefetch", "16", "-q", "jobs", "--log-level", "error")
    eventually(lambda: len(rig.lines()) > 50)
    os.kill(killed.pid, signal.SIGKILL)
    # Otherwise the burst could end before the broker requeues the jobs of the killed worker.
    eventually(lambda: rig.pending() + len(set(rig.lines())) >= 600)
    rig.burst("--prefetch", "16", "-q", "jobs")

    counted = Counter(rig.lines())
    assert sorted(counted) == numbers(600)
    # Only jobs whose acknowledgements were on their way when the worker was killed may run twice.
    assert sum(counted.values()) <= 600 + 16
    assert rig.errors() == {}


def test_a_prefetch_below_one_is_refused(rig: Rig) -> None:
    ended = rig.run("worker", "crew", "--prefetch", "0")

    assert ended.returncode == 2
    assert "--prefetch" in ended.stderr
