"""The names that a shell completes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from palermo.cli import main
from palermo.client.client import Client
from palermo.worker.handle import start_worker
from tests.cli.conftest import Palermo, Process
from tests.helpers import eventually
from tests.inspector.jobs import failure, message, publish_failed

#: The completions of the last word.
Completed = Callable[[str], list[str]]


@pytest.fixture
def completed(palermo: Palermo) -> Completed:
    def complete(words: str) -> list[str]:
        _, *arguments, last = words.split(" ")
        completion = BashComplete(main, {}, "palermo", "_PALERMO_COMPLETE")
        return [item.value for item in completion.get_completions(arguments, last)]

    return complete


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
        # A failed job without a name breaks nothing.
        ("palermo failed list --job s", ["shop.report", "shop.send"]),
        *((f"palermo recurring {command} n", ["nightly"]) for command in ("show", "run", "enable", "disable")),
        ("palermo purge nothing", []),
        ("palermo que", ["queues"]),
    ],
)
def test_names_are_completed_wherever_one_is_given(
    palermo: Palermo, completed: Completed, client: Client, words: str, names: list[str]
) -> None:
    publish_failed(client, (message("1", job="", queue="pictures"), failure()), (message("2"), failure()))
    palermo("recurring", "add", "nightly", "shop.report", "--every", "1d")

    assert completed(words) == names


def test_workers_are_completed(completed: Completed, url: str, tmp_path: Path) -> None:
    (tmp_path / "completed_jobs.py").write_text("import palermo\n@palermo.job\ndef resize(path): ...\n")

    with start_worker(["completed_jobs"], url=url) as worker:
        [name] = eventually(lambda: completed("palermo control quiet pid"))

        assert name.startswith(f"pid:{worker.pid}@")
        assert completed("palermo history --worker pid") == [name]


def test_a_shell_completes_the_jobs_that_the_configured_modules_declare(process: Process, tmp_path: Path) -> None:
    (tmp_path / "completed_jobs.py").write_text("import palermo\nprint('loud')\n@palermo.job\ndef resize(path): ...\n")
    shell = {"_PALERMO_COMPLETE": "bash_complete", "COMP_WORDS": "palermo enqueue comp", "COMP_CWORD": "2"}

    done = process(PALERMO_IMPORTS="completed_jobs", **shell)

    assert (done.stdout, done.stderr) == ("plain,completed_jobs.resize\n", "")


def test_a_broker_that_is_away_completes_nothing_and_says_nothing(
    completed: Completed, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PALERMO_URL", "amqp://127.0.0.1:1/")

    assert completed("palermo pause m") == []
    assert capfd.readouterr() == ("", "")
