"""Recurring jobs as Resque's scheduler and Sidekiq have them: K2, K4, R12, and the lines of peers on cron."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from palermo.settings.settings import Settings
from tests.acceptance.place import Place, Worker
from tests.helpers import eventually


def worker(place: Place, *arguments: str, **environment: str) -> Worker:
    return place.worker("-q", "jobs,mail", *arguments, modules=("recurs",), **environment)


def recurring(place: Place) -> dict[str, dict[str, Any]]:
    """By name."""
    return {row["name"]: row for row in place.rows("recurring", "list")}


def declared(place: Place, *names: str) -> dict[str, dict[str, Any]]:
    """The rows once there are these names and no other."""
    return eventually(lambda: found if set(found := by_name(place)) == set(names) else {})


def by_name(place: Place) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in place.inspector.recurring()}


def schedule(place: Place, text: str) -> None:
    (place.path / "palermo.toml").write_text(text)


def test_K2_a_job_declares_when_it_recurs_and_a_worker_runs_it_at_each_tick_once(place: Place) -> None:
    worker(place)

    ids = place.await_lines(3, "ticks")

    ticks = [datetime.fromisoformat(id.removeprefix("recurs.tick@")).timestamp() for id in ids]
    assert ticks == [ticks[0] + after for after in range(len(ticks))]
    rows = recurring(place)
    assert set(rows) == {"recurs.tick", "sweep"}
    assert rows["recurs.tick"]["origin"] == "code:recurs"
    assert rows["recurs.tick"]["args"] == ["ticks"]
    assert (rows["sweep"]["cron"], rows["sweep"]["tz"], rows["sweep"]["queue"]) == ("0 3 * * *", "Europe/Rome", "mail")
    assert rows["sweep"]["words"] == "At 03:00 every day (Europe/Rome)"
    following = datetime.fromisoformat(rows["sweep"]["next_run"])
    assert datetime.now(UTC) < following
    assert (following.hour, following.minute) in ((1, 0), (2, 0))


def test_R12_a_schedule_in_the_configuration_runs_jobs_and_follows_it(place: Place) -> None:
    schedule(
        place,
        '[schedule.notes]\njob = "shop.note"\nevery = "1s"\nargs = ["from the file"]\n'
        '[schedule.yearly]\njob = "shop.note"\ncron = "0 0 1 1 *"\nqueue = "mail"\nkwargs = {text = "new year"}\n',
    )
    first = place.worker("-q", "jobs")
    assert place.await_lines(2)[:2] == ["from the file"] * 2
    rows = by_name(place)
    assert {name: row["origin"] for name, row in rows.items()} == {"notes": "config", "yearly": "config"}
    assert rows["yearly"]["kwargs"] == {"text": "new year"}

    first.end()
    schedule(place, '[schedule.notes]\njob = "shop.note"\nevery = 3600\nargs = ["seldom"]\n')
    place.worker("-q", "jobs")

    eventually(lambda: declared(place, "notes")["notes"]["every"] == 3600)


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
def test_R12_a_schedule_that_means_nothing_is_said_in_one_line(sqlite_place: Place, text: str, said: str) -> None:
    schedule(sqlite_place, text)

    done = sqlite_place.run("queues")

    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_R12_the_schedule_is_changed_at_run_time_while_workers_run(place: Place) -> None:
    place.worker("-q", "jobs")
    place.palermo("recurring", "add", "noted", "shop.note", "--every", "1", "--args", '["dynamic"]')
    place.await_lines(2)

    place.palermo("recurring", "remove", "noted", "--yes")

    assert place.rows("recurring", "list") == []
    place.enqueue("note", "last")
    eventually(lambda: place.lines()[-1] == "last")
    count = len(place.lines())
    place.palermo("recurring", "add", "other", "shop.note", "--every", "1", "--args", '["other"]')
    assert set(place.await_lines(count + 2)[count:]) == {"other"}


def test_a_recurring_job_sees_no_clock_before_its_tick(place: Place) -> None:
    for number in range(4):
        place.palermo("recurring", "add", f"read-{number}", "clocks.read", "-q", "jobs", "--every", "1")
    place.worker("-q", "jobs", modules=("clocks",), TZ="UTC")

    found = [json.loads(line) for line in place.await_lines(32, "clocks")]

    for id, clocks in found:
        tick = datetime.fromisoformat(id.partition("@")[2]).timestamp()
        assert {name: seen for name, seen in clocks.items() if seen < tick} == {}, id


def test_K4_one_is_run_now_and_disabled_and_stays_so_when_its_worker_starts_anew(place: Place) -> None:
    first = worker(place)
    declared(place, "recurs.tick", "sweep")

    id = place.palermo("recurring", "run", "sweep").strip()
    assert place.await_lines(1, "sweeps") == ["swept"]
    assert id.startswith("sweep@")
    eventually(lambda: by_name(place)["sweep"]["last_run"] is not None)
    place.palermo("recurring", "disable", "recurs.tick", "sweep")

    first.end()
    second = worker(place, SWEEP="*/5 * * * *")
    place.ready(second)
    eventually(lambda: by_name(place)["sweep"]["cron"] == "*/5 * * * *")
    rows = by_name(place)
    assert not rows["recurs.tick"]["enabled"]
    assert not rows["sweep"]["enabled"]
    # Behind the ticks that were fired before, and that the first worker had not run.
    place.client.enqueue("recurs.tick", ("behind",))
    place.await_lines(1, "behind")
    ran = len(place.lines("ticks"))
    place.palermo("recurring", "add", "other", "recurs.tick", "-q", "jobs", "--every", "1", "--args", '["others"]')
    place.await_lines(2, "others")
    assert len(place.lines("ticks")) == ran


def test_K4_what_the_code_declares_no_more_is_removed_when_its_worker_starts(place: Place) -> None:
    first = worker(place)
    declared(place, "recurs.tick", "sweep")
    place.palermo("recurring", "add", "mine", "recurs.tick", "-q", "jobs", "--cron", "0 0 1 1 *")
    first.end()

    place.ready(worker(place, "--no-scheduler", WITHOUT_SWEEP="1"))
    assert set(by_name(place)) == {"recurs.tick", "sweep", "mine"}

    worker(place, WITHOUT_SWEEP="1")
    declared(place, "recurs.tick", "mine")


def test_K2_ticks_missed_while_no_worker_was_there_are_all_made_up_for(place: Place) -> None:
    first = worker(place)
    place.await_lines(1, "ticks")
    first.end()
    gone = time.time()
    eventually(lambda: time.time() > gone + 4)

    def ticks() -> list[float]:
        instants = {id.partition("@")[2] for id in place.lines("ticks")}
        return sorted(datetime.fromisoformat(instant).timestamp() for instant in instants)

    assert max(ticks()) < gone + 1

    worker(place)

    eventually(lambda: max(ticks()) > gone + 4)
    found = eventually(lambda: found if len(found := ticks()) >= 6 else [])
    assert found == [found[0] + after for after in range(len(found))]


def test_K2_signed_jobs_recur_too(place: Place) -> None:
    signed = {"PALERMO_SIGN": "1", "PALERMO_SIGNING_KEYS": "0123456789abcdef0123"}
    worker(place, "--accept-only", "signed", **signed)

    place.await_lines(2, "ticks")

    assert place.failed() == {}


def test_K2_a_mistake_in_a_declaration_is_said_when_the_module_is_imported(place: Place) -> None:
    (place.path / "mistaken.py").write_text(
        'import palermo\n@palermo.job(cron="* * * * *", tz="Mars/Base")\ndef sweep():\n    pass\n'
    )
    started = place.worker("-q", "jobs", modules=("mistaken",))

    assert started.wait() == 1
    assert "Mars/Base" in started.log


def test_R12_the_schedule_travels_with_the_settings(tmp_path: Path) -> None:
    given = Settings(schedule={"x": {"job": "shop.note", "every": "5m"}})

    assert given.schedule == {"x": {"job": "shop.note", "every": 300.0}}
    assert Settings(schedule='{"x": {"job": "shop.note", "cron": "* * * * *"}}').schedule["x"]["cron"] == "* * * * *"  # type: ignore[arg-type]


def test_T9_named_queues_with_workers_of_their_own_beside_a_sweep_by_the_clock(place: Place) -> None:
    place.palermo("recurring", "add", "sweep", "shop.note", "-q", "sweeps", "--every", "1", "--args", '["swept"]')
    for queue in ("svn", "big"):
        place.enqueue("note", f"for {queue}", queue=queue)

    for queue in ("svn", "sweeps"):
        place.worker("-q", queue)

    eventually(lambda: {"for svn", "swept"} <= set(place.lines()))
    assert "for big" not in place.lines()
    assert place.pending("big") == 1
    place.burst("-q", "big")
    assert "for big" in place.lines()
