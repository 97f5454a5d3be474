"""The comparison with other job systems: its arithmetic, its table, and one workload that is really played."""

from pathlib import Path

import pytest

from benchmarks.peers.__main__ import compared, select
from benchmarks.peers.installed import versions
from benchmarks.peers.marks import RING, Marker, Marks
from benchmarks.peers.scores import Metric, Score, Spread, percentile, ratios
from benchmarks.peers.setup import VARIABLE, Setup
from benchmarks.peers.stores import stores
from benchmarks.peers.systems import SYSTEMS
from benchmarks.peers.table import summary, table
from benchmarks.peers.tour import Tour
from benchmarks.peers.workloads import Workload, workloads

pytestmark = pytest.mark.slow


_RATE = Metric(key="rate", head="jobs/s")


def rates(*values: float) -> list[Score]:
    return [{"rate": value} for value in values]


def test_a_ratio_is_taken_of_the_same_round() -> None:
    assert ratios(rates(50, 80, 30), rates(100, 100, 60), "rate") == [0.5, 0.8, 0.5]


def test_a_round_that_the_other_has_not_played_has_no_ratio() -> None:
    assert ratios(rates(50, 80), rates(100), "rate") == [0.5]
    assert ratios(rates(50), [{}], "rate") == []


def test_a_spread_has_the_median_between_its_ends() -> None:
    assert Spread.of([0.9, 0.5, 0.6]) == Spread(median=0.6, lowest=0.5, highest=0.9)


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 51), (0.99, 100), (1.0, 100)])  # of 1 to 100
def test_a_percentile_is_one_of_the_values(share: float, value: int) -> None:
    assert percentile(list(range(100, 0, -1)), share) == value


def test_a_table_has_a_row_for_each_that_played() -> None:
    scores = {"raw": rates(1000, 2000, 4000), "us": rates(500, 1600, 2000), "gone": []}

    lines = table(scores, [_RATE], base="raw", less=False, notes={"us": "yes"})

    assert lines == [
        "| system | to raw: median (lowest to highest) | jobs/s | job isolated |",
        "| --- | --- | --- | --- |",
        "| raw | **1.00** (1.00 to 1.00) | 2,000 |  |",
        "| us | **0.50** (0.50 to 0.80) | 1,600 | yes |",
        "| gone | – | – |  |",
    ]


def test_all_workloads_are_summed_up_by_the_first_of_each_system() -> None:
    (pool,) = select(workloads(), ["async"])
    scores = {"raw": rates(100), "raw-100": rates(300), "palermo-async": rates(150)}

    assert compared(pool, pool.entries, scores) == {"raw": 1.0, "palermo": 1.5}


def test_a_summary_has_a_column_for_each_system() -> None:
    assert summary({"drain-1": {"raw": 1, "us": 0.5}, "import": {"raw": 1, "huey": 2}}) == [
        "| median ratio | raw | us | huey |",
        "| --- | --- | --- | --- |",
        "| drain-1 | 1.00 | 0.50 | – |",
        "| import | 1.00 | – | 2.00 |",
    ]


def test_a_table_says_where_less_is_better() -> None:
    lines = table({"raw": rates(2)}, [_RATE], base="raw", less=True, notes={})

    assert lines[0] == "| system | to raw, less is better: median (lowest to highest) | jobs/s |"


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (["drain"], ["drain-1", "drain-2", "drain-4"]),
        (["enqueue-many", "memory"], ["enqueue-many", "memory"]),
        (["quorum"], ["quorum-enqueue", "quorum-drain"]),
        ([], [workload.name for workload in workloads()]),
    ],
)
def test_workloads_are_chosen_by_name_or_by_its_beginning(wanted: list[str], names: list[str]) -> None:
    assert [workload.name for workload in select(workloads(), wanted)] == names


def test_an_unknown_workload_is_refused_with_those_there_are() -> None:
    with pytest.raises(SystemExit, match="no workload 'drian'; there are enqueue-one, "):
        select(workloads(), ["drian"])


@pytest.mark.parametrize("workload", workloads(), ids=lambda workload: workload.name)
def test_only_systems_that_can_take_part(workload: Workload) -> None:
    labels = [entry.label for entry in workload.entries]

    assert workload.base in labels
    assert len(set(labels)) == len(labels)
    for entry in workload.entries:
        system = entry.system
        assert entry.setup.pool in system.isolation or not workload.runs_jobs
        assert entry.store in system.stores or workload.name == "import"
        assert system.quorum or not entry.setup.quorum


def test_a_setup_arrives_in_another_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(url="amqp://h", queues=("a", "b"), slots=4, pool="thread", quorum=True, confirm=False)

    monkeypatch.setenv(VARIABLE, setup.environment()[VARIABLE])

    assert Setup.here() == setup


def test_runs_are_counted_all_and_remembered_to_a_limit(tmp_path: Path) -> None:
    marker, marks = Marker(str(tmp_path)), Marks(tmp_path)

    for enqueued in range(RING + 10):
        marker.mark(enqueued)

    assert marks.per_process() == [RING + 10]
    assert sorted(asked for _, asked in marks.runs()) == list(range(10, RING + 10))
    marks.close()


def test_a_python_that_is_not_there_has_nothing_installed(tmp_path: Path) -> None:
    assert versions(SYSTEMS["celery"].python(tmp_path), ["celery"]) == {}


def test_palermo_and_the_bare_client_drain_in_turns(rabbitmq_url: str, tmp_path: Path) -> None:
    (drain,) = select(workloads(scale=0.2), ["drain-1"])
    entries = [entry for entry in drain.entries if entry.label in ("raw", "palermo")]

    with stores(rabbitmq_url, tmp_path, redis=False) as found:
        tour = Tour(drain, entries, found, folder=tmp_path, venv=tmp_path)
        tour.play(rounds=2)

    assert tour.left_out == {}
    assert {label: len(scores) for label, scores in tour.scores.items()} == {"raw": 2, "palermo": 2}
    assert all(score["rate"] > 0 for scores in tour.scores.values() for score in scores)
