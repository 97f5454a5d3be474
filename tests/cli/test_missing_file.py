"""A mistyped path of an SQLite file: commands that look, or change what is there, create nothing."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Palermo

COMMANDS = [
    "check",
    "check --workers 1",
    "queues",
    "jobs mail",
    "workers",
    "limits",
    "tenants mail",
    "stats",
    "history",
    "audit",
    "top --once",
    "status 1",
    "wait 1",
    "failed list",
    "failed groups",
    "failed show 1",
    "failed requeue 1",
    "failed discard --all --yes",
    "scheduled list",
    "scheduled cancel --all --yes",
    "retries list",
    "retries run --all --yes",
    "recurring list",
    "recurring show nightly",
    "recurring remove nightly --yes",
    "topics",
    "topics replay mail --yes",
    "unique list",
    "pause mail",
    "resume mail",
    "cancel 1",
    "control quiet --all",
    "purge mail --yes",
    "purge --all --yes",
    "delete mail --yes",
    "dequeue shop.send --yes",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_mistyped_sqlite_path_is_named_whole_and_nothing_is_created(
    palermo: Palermo, tmp_path: Path, command: str
) -> None:
    before = sorted(tmp_path.iterdir())

    (line,) = palermo(*command.split(), "--url", "sqlite:///jbos.db", code=3).stderr.splitlines()

    assert f"there is no file {tmp_path}/jbos.db" in line
    assert sorted(tmp_path.iterdir()) == before


def test_doctor_names_the_missing_file_and_creates_nothing(palermo: Palermo, tmp_path: Path) -> None:
    found = json.loads(palermo("doctor", "--url", "sqlite:///jbos.db", "--json", code=1).stdout)

    assert any(f"there is no file {tmp_path}/jbos.db" in each["text"] for each in found if each["level"] == "problem")
    assert not (tmp_path / "jbos.db").exists()


def test_doctor_prints_the_absolute_path_of_the_file(palermo: Palermo, tmp_path: Path) -> None:
    assert f"on file {tmp_path}/jobs.db" in palermo("doctor", "--url", "sqlite:///jobs.db").stdout


@pytest.mark.parametrize(
    "command", ["enqueue shop.send", "publish order.paid", "recurring add nightly shop.send --every 1h"]
)
def test_a_command_that_stores_something_creates_the_file(palermo: Palermo, tmp_path: Path, command: str) -> None:
    palermo(*command.split(), "--url", "sqlite:///first.db")

    assert (tmp_path / "first.db").exists()
