"""Recurring jobs as Resque's scheduler and Sidekiq have them: K2, K4, R12, and the lines of peers on cron."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from palermo.settings.settings import Settings
from tests.harness.processes import WorkerProcess
from tests.harness.rig import Rig
from tests.helpers import eventually


def worker(rig: Rig, *arguments: str, **environment: str) -> WorkerProcess:
    return rig.worker("-q", "jobs,mail", *arguments, modules=("recurs",), **environment)


def recurring(rig: Rig) -> dict[str, dict[str, Any]]:
    """By name."""
    return {row["name"]: row for row in rig.rows("recurring", "list")}


def declared(rig: Rig, *names: str) -> dict[str, dict[str, Any]]:
    """The rows once there are these names and no other."""
    return eventually(lambda: found if set(found := by_name(rig)) == set(names) else {})


def by_name(rig: Rig) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in rig.inspector.recurring()}


def schedule(rig: Rig, text: str) -> None:
    (rig.path / "palermo.toml").write_text(text)


def test_K2_a_job_declares_when_it_recurs_and_a_worker_runs_it_at_each_tick_once(rig: Rig) -> None:
    worker(rig)

    ids = rig.await_lines(3, "ticks")

    ticks = [datetime.fromisoformat(id.removeprefix("recurs.tick@")).timestamp() for id in ids]
    assert ticks == [ticks[0] + after for after in range(len(ticks))]
    rows = recurring(rig)
    assert set(rows) == {"recurs.tick", "sweep"}
    assert rows["recurs.tick"]["origin"] == "code:recurs"
    assert rows["recurs.tick"]["args"] == ["ticks"]
    assert (rows["sweep"]["cron"], rows["sweep"]["tz"], rows["sweep"]["queue"]) == ("0 3 * * *", "Europe/Rome", "mail")
    assert rows["sweep"]["words"] == "At 03:00 every day (Europe/Rome)"
    following = datetime.fromisoformat(rows["sweep"]["next_run"])
    assert datetime.now(UTC) < following
    assert (following.hour, following.minute) in ((1, 0), (2, 0))


def test_R12_a_schedule_in_the_configuration_runs_jobs_and_follows_it(rig: Rig) -> None:
    schedule(
        rig,
        '[schedule.notes]\njob = "shop.note"\nevery = "1s"\nargs = ["from the file"]\n'
        '[schedule.yearly]\njob = "shop.note"\ncron = "0 0 1 1 *"\nqueue = "mail"\nkwargs = {text = "new year"}\n',
    )
    first = rig.worker("-q", "jobs")
    assert rig.await_lines(2)[:2] == ["from the file"] * 2
    rows = by_name(rig)
    assert {name: row["origin"] for name, row in rows.items()} == {"notes": "config", "yearly": "config"}
    assert rows["yearly"]["kwargs"] == {"text": "new year"}

    first.end()
    schedule(rig, '[schedule.notes]\njob = "shop.note"\nevery = 3600\nargs = ["seldom"]\n')
    rig.worker("-q", "jobs")

    eventually(lambda: declared(rig, "notes")["notes"]["every"] == 3600)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[schedule.x]\njob = "shop.note"\n', "cron= or every="),
        ("[schedule.x]\nevery = 5\n", "names no job"),
        ('[schedule.x]\njob = "shop.note"\nevery = 5\nwhen = "now"\n', "'when'"),
        ('[schedule.x]\njob = "shop.note"\ncron = "99 * * * *"\n', "'99 * * * *'"),
        ('[schedule.x]\njob = "shop.note"\nevery = true\n', "every = True"),
        ("schedule = 5\n", "table"),
    ],
)
def test_R12_a_schedule_that_means_nothing_is_said_in_one_line(sqlite_rig: Rig, text: str, said: str) -> None:
    schedule(sqlite_rig, text)

    done = sqlite_rig.run("queues")

    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_R12_the_schedule_is_changed_at_run_time_while_workers_run(rig: Rig) -> None:
    rig.worker("-q", "jobs")
    rig.palermo("recurring", "add", "noted", "shop.note", "--every", "1", "--args", '["dynamic"]')
    rig.await_lines(2)

    rig.palermo("recurring", "remove", "noted", "--yes")

    assert rig.rows("recurring", "list") == []
    rig.enqueue("note", "last")
    eventually(lambda: rig.lines()[-1] == "last")
    count = len(rig.lines())
    rig.palermo("recurring", "add", "other", "shop.note", "--every", "1", "--args", '["other"]')
    assert set(rig.await_lines(count + 2)[count:]) == {"other"}


def test_a_recurring_job_sees_no_clock_before_its_tick(rig: Rig) -> None:
    for number in range(4):
        rig.palermo("recurring", "add", f"read-{number}", "clocks.read", "-q", "jobs", "--every", "1")
    rig.worker("-q", "jobs", modules=("clocks",), TZ="UTC")

    found = [json.loads(line) for line in rig.await_lines(32, "clocks")]

    for id, clocks in found:
        tick = datetime.fromisoformat(id.partition("@")[2]).timestamp()
        assert {name: seen for name, seen in clocks.items() if seen < tick} == {}, id


def test_K4_one_is_run_now_and_disabled_and_stays_so_when_its_worker_starts_anew(rig: Rig) -> None:
    first = worker(rig)
    declared(rig, "recurs.tick", "sweep")

    id = rig.palermo("recurring", "run", "sweep").strip()
    assert rig.await_lines(1, "sweeps") == ["swept"]
    assert id.startswith("sweep@")
    eventually(lambda: by_name(rig)["sweep"]["last_run"] is not None)
    rig.palermo("recurring", "disable", "recurs.tick", "sweep")

    first.end()
    second = worker(rig, SWEEP="*/5 * * * *")
    rig.ready(second)
    eventually(lambda: by_name(rig)["sweep"]["cron"] == "*/5 * * * *")
    rows = by_name(rig)
    assert not rows["recurs.tick"]["enabled"]
    assert not rows["sweep"]["enabled"]
    # Behind the ticks that were fired before, and that the first worker had not run.
    rig.client.enqueue("recurs.tick", ("behind",))
    rig.await_lines(1, "behind")
    ran = len(rig.lines("ticks"))
    rig.palermo("recurring", "add", "other", "recurs.tick", "-q", "jobs", "--every", "1", "--args", '["others"]')
    rig.await_lines(2, "others")
    assert len(rig.lines("ticks")) == ran


def test_K4_what_the_code_declares_no_more_is_removed_when_its_worker_starts(rig: Rig) -> None:
    first = worker(rig)
    declared(rig, "recurs.tick", "sweep")
    rig.palermo("recurring", "add", "mine", "recurs.tick", "-q", "jobs", "--cron", "0 0 1 1 *")
    first.end()

    rig.ready(worker(rig, "--no-scheduler", WITHOUT_SWEEP="1"))
    assert set(by_name(rig)) == {"recurs.tick", "sweep", "mine"}

    worker(rig, WITHOUT_SWEEP="1")
    declared(rig, "recurs.tick", "mine")


def test_K2_ticks_missed_while_no_worker_was_there_are_all_made_up_for(rig: Rig) -> None:
    first = worker(rig)
    rig.await_lines(1, "ticks")
    first.end()
    gone = time.time()
    eventually(lambda: time.time() > gone + 4)

    def ticks() -> list[float]:
        instants = {id.partition("@")[2] for id in rig.lines("ticks")}
        return sorted(datetime.fromisoformat(instant).timestamp() for instant in instants)

    assert max(ticks()) < gone + 1

    worker(rig)

    eventually(lambda: max(ticks()) > gone + 4)
    found = eventually(lambda: found if len(found := ticks()) >= 6 else [])
    assert found == [found[0] + after for after in range(len(found))]


def test_K2_signed_jobs_recur_too(rig: Rig) -> None:
    signed = {"PALERMO_SIGN": "1", "PALERMO_SIGNING_KEYS": "0123456789abcdef0123"}
    worker(rig, "--accept-only", "signed", **signed)

    rig.await_lines(2, "ticks")

    assert rig.failed() == {}


def test_K2_a_mistake_in_a_declaration_is_said_when_the_module_is_imported(rig: Rig) -> None:
    (rig.path / "mistaken.py").write_text(
        'import palermo\n@palermo.job(cron="* * * * *", tz="Mars/Base")\ndef sweep():\n    pass\n'
    )
    started = rig.worker("-q", "jobs", modules=("mistaken",))

    assert started.wait() == 1
    assert "Mars/Base" in started.log


def test_R12_the_schedule_travels_with_the_settings(tmp_path: Path) -> None:
    given = Settings(schedule={"x": {"job": "shop.note", "every": "5m"}})

    assert given.schedule == {"x": {"job": "shop.note", "every": 300.0}}
    assert Settings(schedule='{"x": {"job": "shop.note", "cron": "* * * * *"}}').schedule["x"]["cron"] == "* * * * *"  # type: ignore[arg-type]


def test_T9_named_queues_with_workers_of_their_own_beside_a_sweep_by_the_clock(rig: Rig) -> None:
    rig.palermo("recurring", "add", "sweep", "shop.note", "-q", "sweeps", "--every", "1", "--args", '["swept"]')
    for queue in ("svn", "big"):
        rig.enqueue("note", f"for {queue}", queue=queue)

    for queue in ("svn", "sweeps"):
        rig.worker("-q", queue)

    eventually(lambda: {"for svn", "swept"} <= set(rig.lines()))
    assert "for big" not in rig.lines()
    assert rig.pending("big") == 1
    rig.burst("-q", "big")
    assert "for big" in rig.lines()
