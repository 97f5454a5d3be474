"""Workers of a Django project, as `manage.py` starts them."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palermo.client.client import Client
from palermo.contrib.worker_command import worker_arguments
from tests.contrib import django_site
from tests.contrib.conftest import output_of
from tests.scale import scaled

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

#: Runs `manage.py` with these arguments; its output.
Manage = Callable[..., str]


@pytest.fixture(autouse=True)
def site(_own_world: None) -> Any:
    return django_site.start()


@pytest.fixture
def manage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manage:
    monkeypatch.setenv("SHOP_DATA", str(tmp_path))
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.contrib.django_settings")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(*arguments: str, **variables: str) -> str:
        return output_of([django_site.PROJECT / "manage.py", *arguments], tmp_path, {**os.environ, **variables})

    shutil.copy(django_site.empty_database(), tmp_path / "shop.db")
    return run


@pytest.mark.parametrize(
    ("job", "count", "options"),
    [("look", scaled(200, 1_000), ("-c", "2")), ("look_async", 200, ("-c", "4", "--pool", "async"))],
)
def test_the_connections_of_a_worker_do_not_grow_with_its_jobs(
    job: str, count: int, options: tuple[str, ...], manage: Manage, client: Client, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    client.enqueue_many((job, (str(notes),), {}) for _ in range(count))

    manage("palermo_worker", "tests.contrib.django_jobs", "--burst", *options, DEBUG="1")

    lines = [[int(word) for word in line.split()] for line in notes.read_text().splitlines()]
    pids, before, after, queries = (set(column) for column in zip(*lines, strict=True))
    assert len(lines) == count
    if job == "look":
        assert (before, after, queries) == ({0}, {1}, {0})
    else:
        # One for each coroutine under way. A thread of one that has ended may still be closing its own.
        assert len(pids) == 1
        assert max(after) <= 2 * 4


def test_the_worker_and_the_commands_find_the_project_by_themselves(manage: Manage, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/project.db"
    manage("palermo", "enqueue", "orders.jobs.send_receipt", "--args", "[1]", PALERMO_URL="")

    elsewhere = manage("palermo", "--url", url, "worker", "--burst", PALERMO_URL="")
    here = manage("palermo_worker", "--burst", "--settings", "django_shop.settings", PALERMO_URL="")
    help = manage("palermo_worker", "--help")

    assert "queues=jobs,mail,warehouse" in elsewhere
    assert f"broker={url}" in elsewhere
    assert "job=orders.jobs.send_receipt" not in elsewhere
    assert "Order matching query does not exist" in here
    assert "manage.py palermo_worker [OPTIONS]" in help
    assert "--concurrency" in help


def test_a_program_runs_a_worker_beside_itself_and_finds_its_tasks_results(
    site: Any, manage: Manage, client: Client, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    done, failed = site.tasks.add.enqueue(1, b=2), site.tasks.break_down.enqueue()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(django_site.PROJECT))))

    site.call_command("palermo_worker", "tests.contrib.django_jobs", "--burst")
    with pytest.raises(site.CommandError, match="exit code 2"):
        site.call_command("palermo_worker", "--burts")

    assert "worker stopped" in capfd.readouterr().err
    done.refresh()
    assert (done.status, done.return_value, done.args) == (site.tasks.TaskResultStatus.SUCCESSFUL, 3, [1])
    assert None not in (done.started_at, done.finished_at)
    assert done.attempts == 1
    found = site.tasks.break_down.get_result(failed.id)
    assert found.status == site.tasks.TaskResultStatus.FAILED
    assert [error.exception_class for error in found.errors] == [ValueError]


@pytest.mark.parametrize(
    ("words", "given"),
    [
        *(("worker -c 2", "-c 2"), ("--url x --debug worker shop.jobs", "--url x --debug shop.jobs")),
        *(("--url=x worker", "--url=x"), ("worker --help", None), ("--url worker queues", None)),
        *(("queues worker", None), ("", None)),
    ],
)
def test_a_command_line_that_runs_a_worker_is_known(words: str, given: str | None) -> None:
    assert worker_arguments(words.split()) == (None if given is None else given.split())
