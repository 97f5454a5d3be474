"""Recurring jobs that code, settings and commands declare, and the workers that run them."""

from typing import Any

from tests.harness.processes import WorkerProcess
from tests.harness.rig import Rig
from tests.helpers import eventually


def worker(rig: Rig, *arguments: str, **environment: str) -> WorkerProcess:
    return rig.worker("-q", "jobs,mail", *arguments, modules=("recurs",), **environment)


def recurring(rig: Rig) -> dict[str, dict[str, Any]]:
    """By name."""
    return {row["name"]: dict(row) for row in rig.inspector.recurring.list()}


def test_what_an_operator_changed_outlasts_the_worker_that_declared_it(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    first = worker(rig)
    eventually(lambda: set(recurring(rig)) == {"recurs.tick", "sweep"})
    id = rig.palermo("recurring", "run", "sweep").strip()
    assert rig.await_lines(1, "sweeps") == ["swept"]
    assert id.startswith("sweep@")
    eventually(lambda: recurring(rig)["sweep"]["last_run"] is not None)
    rig.palermo("recurring", "disable", "recurs.tick", "sweep")
    rig.palermo("recurring", "add", "mine", "recurs.tick", "-q", "jobs", "--every", "1", "--args", '["mine"]')
    first.end()

    second = worker(rig, SWEEP="*/5 * * * *")
    eventually(lambda: recurring(rig)["sweep"]["cron"] == "*/5 * * * *")
    assert {name: row["enabled"] for name, row in recurring(rig).items()} == {
        "recurs.tick": False, "sweep": False, "mine": True,
    }  # fmt: skip
    # Behind the ticks that were fired before, and that the first worker had not run.
    rig.client.enqueue("recurs.tick", ("behind",))
    rig.await_lines(1, "behind")
    ran = len(rig.lines("ticks"))
    rig.await_lines(len(rig.lines("mine")) + 2, "mine")
    assert len(rig.lines("ticks")) == ran
    second.end()

    # What the code no longer declares goes when its worker starts, and what was added by hand stays.
    worker(rig, WITHOUT_SWEEP="1")
    eventually(lambda: set(recurring(rig)) == {"recurs.tick", "mine"})
    rig.palermo("recurring", "remove", "mine", "--yes")
    assert set(recurring(rig)) == {"recurs.tick"}


def test_a_schedule_in_the_settings_runs_jobs_and_its_changes_count(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    settings = rig.path / "palermo.toml"
    settings.write_text(
        '[schedule.notes]\njob = "shop.note"\nevery = "1s"\nargs = ["from the file"]\n'
        '[schedule.yearly]\njob = "shop.note"\ncron = "0 0 1 1 *"\nqueue = "mail"\nkwargs = {text = "new year"}\n'
    )
    first = rig.worker("-q", "jobs")
    assert rig.await_lines(2)[:2] == ["from the file"] * 2
    rows = recurring(rig)
    assert {name: row["origin"] for name, row in rows.items()} == {"notes": "config", "yearly": "config"}
    assert rows["yearly"]["kwargs"] == {"text": "new year"}

    first.end()
    settings.write_text('[schedule.notes]\njob = "shop.note"\nevery = 3600\nargs = ["seldom"]\n')
    rig.worker("-q", "jobs")

    eventually(lambda: {name: row["every"] for name, row in recurring(rig).items()} == {"notes": 3600})

    settings.write_text('[schedule.x]\njob = "shop.note"\ncron = "99 * * * *"\n')
    refused = rig.run("queues")
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert "99 * * * *" in line


def test_signed_jobs_recur_too(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    worker(rig, "--accept-only", "signed", PALERMO_SIGN="1", PALERMO_SIGNING_KEYS="0123456789abcdef0123")

    rig.await_lines(2, "ticks")

    assert rig.failed() == {}
