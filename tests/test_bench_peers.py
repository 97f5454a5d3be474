"""The comparison with other job systems: its arithmetic, and one workload that is really played."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers.__main__ import select
from benchmarks.peers.marks import RING, Marker, Marks
from benchmarks.peers.scores import Score, ratios
from benchmarks.peers.stores import stores
from benchmarks.peers.tour import Tour
from benchmarks.peers.workloads import workloads

pytestmark = pytest.mark.slow


def rates(*values: float) -> list[Score]:
    return [{"rate": value} for value in values]


def test_a_ratio_is_taken_of_the_same_round() -> None:
    assert ratios(rates(50, 80, 30), rates(100, 100, 60), "rate") == [0.5, 0.8, 0.5]
    assert ratios(rates(50, 80), rates(100), "rate") == [0.5]
    assert ratios(rates(50), [{}], "rate") == []


def test_runs_are_counted_all_and_remembered_to_a_limit(tmp_path: Path) -> None:
    marker, marks = Marker(str(tmp_path)), Marks(tmp_path)

    for enqueued in range(RING + 10):
        marker.mark(enqueued)

    assert marks.per_process() == [RING + 10]
    assert sorted(asked for _, asked in marks.runs()) == list(range(10, RING + 10))
    marks.close()


def test_palermo_and_the_bare_client_drain_in_turns(rabbitmq_url: str, tmp_path: Path) -> None:
    (drain,) = select(workloads(scale=0.2), ["drain-1"])
    entries = [entry for entry in drain.entries if entry.label in ("raw", "palermo")]

    with stores(rabbitmq_url, tmp_path, redis=False) as found:
        tour = Tour(drain, entries, found, folder=tmp_path, venv=tmp_path)
        tour.play(rounds=2)

    assert tour.left_out == {}
    assert {label: len(scores) for label, scores in tour.scores.items()} == {"raw": 2, "palermo": 2}
    assert all(score["rate"] > 0 for scores in tour.scores.values() for score in scores)


@pytest.mark.slow
def test_a_chord_of_palermo_has_the_right_sum(rabbitmq_url: str) -> None:
    command = [sys.executable, "-m", "benchmarks.peers.chord", "palermo", "-n", "50", "--url", rabbitmq_url]
    assert "sum right" in subprocess.run(command, check=True, capture_output=True, text=True, timeout=100).stdout
