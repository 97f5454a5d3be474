"""The comparison with other job systems: one workload, and a chord."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers.__main__ import select
from benchmarks.peers.stores import stores
from benchmarks.peers.tour import Tour
from benchmarks.peers.workloads import workloads

pytestmark = pytest.mark.slow


def test_palermo_and_the_bare_client_drain_in_turns(rabbitmq_url: str, tmp_path: Path) -> None:
    (drain,) = select(workloads(scale=0.2), ["drain-1"])
    entries = [entry for entry in drain.entries if entry.label in ("raw", "palermo")]

    with stores(rabbitmq_url, tmp_path, redis=False) as found:
        tour = Tour(drain, entries, found, folder=tmp_path, venv=tmp_path)
        tour.play(rounds=2)

    assert tour.left_out == {}
    assert {label: len(scores) for label, scores in tour.scores.items()} == {"raw": 2, "palermo": 2}
    assert all(score["rate"] > 0 for scores in tour.scores.values() for score in scores)


def test_a_chord_of_palermo_has_the_right_sum(rabbitmq_url: str) -> None:
    command = [sys.executable, "-m", "benchmarks.peers.chord", "palermo", "-n", "50", "--url", rabbitmq_url]
    assert "sum right" in subprocess.run(command, check=True, capture_output=True, text=True, timeout=100).stdout
