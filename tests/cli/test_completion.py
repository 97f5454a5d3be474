"""The names that a shell completes."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from palermo.client.client import Client
from palermo.worker.handle import start_worker
from tests.helpers import eventually
from tests.inspector.jobs import failure, message, publish_failed

Process = Callable[..., "subprocess.CompletedProcess[str]"]


def completed(process: Process, words: str, **env: str) -> list[str]:
    """The completions of the last word."""
    shell = {"_PALERMO_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = process(env={**shell, **env})
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("palermo pause ma", ["mail"]),
        ("palermo pause mail p", ["pictures"]),
        ("palermo jobs p", ["pictures"]),
        ("palermo worker shop -q p", ["pictures"]),
        ("palermo worker shop -q mail,p", ["mail,pictures"]),
        ("palermo failed list --queue m", ["mail"]),
        ("palermo failed requeue --to-queue m", ["mail"]),
        ("palermo purge nothing", []),
        ("palermo que", ["queues"]),
    ],
)
def test_queues_are_completed_wherever_one_is_named(
    process: Process, client: Client, words: str, names: list[str]
) -> None:
    for queue in ("mail", "pictures"):
        client.enqueue("some.job", queue=queue)

    assert completed(process, words) == names


def test_jobs_are_completed_by_what_the_configured_modules_declare(process: Process, tmp_path: Path) -> None:
    (tmp_path / "completed_jobs.py").write_text("import palermo\nprint('loud')\n@palermo.job\ndef resize(path): ...\n")

    found = completed(process, "palermo enqueue comp", PALERMO_IMPORTS="completed_jobs")

    assert found == ["completed_jobs.resize"]


def test_a_failed_job_without_a_name_does_not_break_the_completion(process: Process, client: Client) -> None:
    publish_failed(client, (message("1", job=""), failure()), (message("2", job="shop.send"), failure()))

    assert completed(process, "palermo failed list --job s") == ["shop.send"]


def test_workers_are_completed(process: Process, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "completed_jobs.py").write_text("import palermo\n@palermo.job\ndef resize(path): ...\n")

    with start_worker(["completed_jobs"], url=url) as worker:
        [name] = eventually(lambda: completed(process, "palermo control quiet pid"), within=60)
        of_history = completed(process, "palermo history --worker pid")

    assert name.startswith(f"pid:{worker.pid}@")
    assert of_history == [name]


@pytest.mark.parametrize("command", ["show", "run", "enable", "disable"])
def test_recurring_jobs_are_completed(process: Process, command: str) -> None:
    assert process("recurring", "add", "nightly", "shop.report", "--every", "1d").returncode == 0

    assert completed(process, f"palermo recurring {command} n") == ["nightly"]


def test_a_broker_that_is_away_completes_nothing_and_says_nothing(process: Process) -> None:
    assert completed(process, "palermo pause m", PALERMO_URL="amqp://127.0.0.1:1/") == []
