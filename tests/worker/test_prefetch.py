"""`--prefetch`, by whole workers: what waits behind a job is never lost, run twice, or kept from others for long."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import palermo
from palermo.errors import SettingInvalid
from tests.harness.rig import Rig
from tests.helpers import eventually


@pytest.fixture
def rig(rabbitmq_url: str, tmp_path: Path, exchange: str) -> Iterator[Rig]:
    """RabbitMQ, since no other broker has jobs wait anywhere but in their queue."""
    rig = Rig(tmp_path, url=rabbitmq_url, exchange=exchange)
    yield rig
    rig.close()


def numbers(count: int) -> list[str]:
    return [f"{number:04}" for number in range(count)]


@pytest.mark.parametrize("pool", ["process", "async"])
def test_short_jobs_keep_their_order_and_each_runs_once(rig: Rig, pool: str) -> None:
    for number in numbers(400):
        rig.enqueue("note", str(rig.notes_path), number)

    rig.burst("--pool", pool, "--prefetch", "auto", "-q", "jobs")

    assert rig.lines() == numbers(400)


def test_what_a_killed_worker_held_runs_elsewhere_once(rig: Rig) -> None:
    for number in numbers(600):
        rig.enqueue("note", str(rig.notes_path), number)
    killed = rig.worker("--prefetch", "16", "-q", "jobs", "--log-level", "error")
    eventually(lambda: len(rig.lines()) > 50)
    os.kill(killed.pid, signal.SIGKILL)
    # A burst ends if the broker has not yet taken back what the dead worker held.
    eventually(lambda: rig.pending() + len(set(rig.lines())) >= 600)
    rig.burst("--prefetch", "auto", "-q", "jobs")

    counted = Counter(rig.lines())
    assert sorted(counted) == numbers(600)
    # Those whose acknowledgements were on their way, to a broker that hands out so many before it has some of these.
    assert sum(counted.values()) <= 600 + 16
    assert rig.errors() == {}


def test_a_wrong_number_is_refused(rig: Rig) -> None:
    ended = rig.run("worker", "crew", "--prefetch", "0")

    assert ended.returncode == 2
    assert "prefetch is '0'" in ended.stderr
    with pytest.raises(SettingInvalid, match="prefetch is 'some'"):
        palermo.start_worker(["crew"], prefetch="some", url="sqlite:///jobs.db")
