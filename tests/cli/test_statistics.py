"""`palermo stats` and `palermo top`."""

import os
import termios
import time
from typing import Any

import pytest
from rich.console import Console

from palermo.cli.top import HELP, ScreenData, TopKeys, split_rows, view
from palermo.client.client import Client
from palermo.core.durations import Durations
from palermo.history.statistics import Rates
from palermo.inspector.inspector import Inspector
from tests.cli.conftest import Palermo, on_terminal, read_until
from tests.history.written import ended, write
from tests.inspector.jobs import failure as reason
from tests.inspector.jobs import message, publish, publish_failed

NOW = 1_795_219_200.0


def counts(**numbers: float) -> dict[str, Any]:
    took = Durations()
    for seconds in (0.25, 0.5):
        took.add(seconds)
    known = {"kind": "counts", "queue": "mail", "job": "shop.send", "at": time.time()}
    return {**known, **numbers, **took.fields("run")}


def queue(name: str, pending: int = 0, *, workers: int = 1, paused: bool = False) -> dict[str, Any]:
    return {"name": name, "pending": pending, "in_progress": 1, "workers": workers, "paused": paused}


def worker(nth: int, *jobs: str) -> dict[str, Any]:
    running = [
        {"id": job, "job": job, "queue": "mail", "started_at": "2026-11-20T23:59:00Z", "preview": None} for job in jobs
    ]
    row = {"id": f"pid:{nth}@host", "state": "working" if jobs else "idle", "slots": 2, "processed": 10, "failed": 1}
    return {**row, "jobs": running, "queues": ["mail"], "started_at": "2026-11-20T22:00:00Z"}


def failure(nth: int, message: str = "no route", *, retried: bool = False) -> dict[str, Any]:
    known = {"id": f"{nth}", "job": "shop.send", "queue": "mail", "error": "OSError", "message": message}
    return {"at": NOW - nth, **known, "retried": retried}


def screen(queues: list[dict[str, Any]], workers: list[dict[str, Any]], failures: int) -> ScreenData:
    failed = [failure(nth, "no route to the host that has the mails") for nth in range(failures)]
    return ScreenData(at=NOW, broker="here", queues=queues, workers=workers, failures=failed)


def shown(scene: ScreenData, *, width: int = 100, height: int | None = None) -> str:
    console = Console(width=width, highlight=False, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(view(scene, width=width, height=height, foot=HELP))
    console.file.close()
    return console.export_text()


def test_stats_says_what_was_counted_by_queue_job_and_worker(palermo: Palermo, client: Client) -> None:
    up = {"kind": "worker_up", "release": "1.4.2", "at": time.time()}
    write(client, [counts(succeeded=3, at=time.time() - 7_200)], [counts(succeeded=1, retried=1), up])
    client.enqueue("shop.send", queue="mail")

    everything = palermo.rows("stats")
    hour = palermo.rows("stats", "--since", "1h")

    assert (everything["processed"], hour["processed"], hour["failed"], hour["retried"]) == (5, 2, 1, 1)
    assert (hour["run"]["min"], hour["run"]["max"], hour["run"]["count"]) == (0.25, 0.5, 2)
    assert [(row["name"], row["pending"], row["processed"]) for row in hour["queues"]] == [
        ("mail", 1, 2),
        ("failed", 0, 0),
    ]
    assert [(row["id"], row["state"]) for row in hour["workers"]] == [("pid:7@host", None)]
    # One line more, and wider ones, from the first second after the first count.
    text = " ".join(palermo("stats", "--since", "1h").stdout.split())
    expected = ("Processed 2", "Retried 1", "1.4.2 at 20", "shop.send", "pid:7@host")
    assert [part for part in expected if part not in text] == []


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 60)])
def test_top_fits_the_terminal(width: int, height: int) -> None:
    many = range(40)
    scene = screen([queue(f"queue {nth}", nth) for nth in many], [worker(nth, "shop.send") for nth in many], 40)

    lines = shown(scene, width=width, height=height).splitlines()

    assert [split_rows(sizes, 21) for sizes in ([2, 3, 4], [50, 1, 50])] == [[2, 3, 4], [10, 1, 10]]
    assert [split_rows(*given) for given in (([50, 50, 50], 0), ([0, 0], 10))] == [[2, 2, 2], [0, 0]]
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert lines[-1].startswith("q quits")


@pytest.mark.parametrize("width", [60, 80, 130])
def test_top_cuts_no_heading_no_sum_and_no_key_of_a_narrow_terminal(width: int) -> None:
    name = "region-north-orders-of-the-shop"
    scene = screen([queue(name, 1_234, workers=0)], [worker(12_345, "shop.send_all_mails_of_the_day")], 1)

    text = shown(scene, width=width)

    headings = ("Queue", "Waiting", "In progress", "Workers", "Worker", "State", "Busy", "Failed", "Works on", "Error")
    lines = [line for line in text.splitlines() if line.split()[:1] in (["Queue"], ["Worker"], ["At"])]
    assert [heading for heading in headings if heading not in " ".join(lines)] == []
    assert "…" not in "".join(lines)
    assert all(sum in text for sum in ("1,234 waiting", "1 of 2 slots busy", "–/s failing"))
    assert text.rstrip().endswith("/ filter")


def test_top_shows_queues_workers_and_failures() -> None:
    scene = ScreenData(
        at=NOW,
        broker="here",
        queues=[queue("mail", 3, paused=True), queue("slow", 1_500, workers=0), queue("failed", 7)],
        workers=[worker(1), worker(2, "shop.resize", "shop.send")],
        processed=41.4,
        rates={"slow": Rates(2.5, 0.0)},
        failures=[failure(1, "\x1b[31mred\nline", retried=True), failure(2)],
    )

    text = shown(scene)

    order = [
        text.index(word)
        for word in ("slow", "mail ", "pid:2@host", "pid:1@host", "retries   OSError", "failed    OSError")
    ]
    assert order == sorted(order)
    assert "1,504 waiting" not in text
    assert all(part in text for part in ("1,503 waiting", "7 failed", "41/s processed", "no worker", "paused", "2.5"))
    assert "shop.resize 1 min 0 s and 1 more" in text
    assert r"\x1b[31mred line" in text
    row = scene.row()
    assert (row["pending"], row["failed"], row["queues"][1]["in_rate"]) == (1_503, 7, 2.5)


def test_top_prints_one_short_look_where_nobody_watches(palermo: Palermo, client: Client) -> None:
    publish(client, *(message(f"{nth}", queue=f"mail-{nth}") for nth in range(60)))
    write(client, [ended("7", "failed", at=time.time(), job="shop.send", error="OSError", message="no")])

    text = palermo("top", "--interval", "0.2").stdout
    found = palermo.rows("top", "--once", "--interval", "0.2")

    assert all(part in text for part in ("mail", "OSError: no", "60 waiting", "of 61"))
    assert len(text.splitlines()) <= 40
    assert "q quits" not in text
    assert (found["pending"], [row["id"] for row in found["failures"]]) == (60, ["7"])


def test_top_pauses_resumes_and_requeues_the_queue_that_its_keys_choose(client: Client) -> None:
    publish_failed(client, *((message(name, queue=name), reason()) for name in ("mail", "mailing")))
    inspector = Inspector(client)
    keys = TopKeys(inspector)

    def press(text: str) -> bool:
        return keys.press(text, [row for row in inspector.queues.list() if row["name"] != "failed"])

    assert not press("p")
    assert "choose a queue first" in keys.foot
    press("\x1b[B\x1b[Bp")
    assert (keys.queue, keys.foot) == ("mailing", "paused mailing")
    assert {row["name"] for row in inspector.queues.list() if row["paused"]} == {"mailing"}
    press("p")
    assert not any(row["paused"] for row in inspector.queues.list())

    press("r")
    assert keys.foot == "requeue all failed jobs of mailing? y or n"
    press("n")
    assert len(inspector.failed.list()) == 2
    press("ry")
    assert keys.foot == "requeued 1 job"
    assert [row["queue"] for row in inspector.failed.list()] == ["mail"]
    assert press("q")


def test_top_shows_what_the_filter_has_in_it(client: Client) -> None:
    scene = screen([queue("mail", 3), queue("slow", 1)], [worker(1), worker(2, "shop.resize")], 1)
    keys = TopKeys(Inspector(client))

    keys.press("/qmailx\x7f\x7f\x7f\x7f\x7f\x7fslow\r", scene.queues)

    assert keys.wanted == "slow"
    assert "filter: slow" in keys.foot
    only = scene.only(keys.wanted)
    assert ([row["name"] for row in only.queues], only.workers, only.failures) == (["slow"], [], [])
    assert [row["id"] for row in scene.only("resize").workers] == [worker(2)["id"]]
    keys.press("/\x1b", scene.queues)
    assert scene.only(keys.wanted) is scene


def test_top_lives_in_a_terminal_until_q_and_leaves_it_as_it_was(url: str, client: Client) -> None:
    client.enqueue("shop.send", queue="mail")

    with on_terminal(["top"], url, LINES="30") as (terminal, pid):
        before = termios.tcgetattr(terminal)
        assert "mail" in read_until(terminal, "q quits")
        assert not termios.tcgetattr(terminal)[3] & termios.ICANON
        client.enqueue("shop.send", queue="later")
        read_until(terminal, "later")
        os.write(terminal, b"q")
        read_until(terminal, "\x1b[?1049l")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert termios.tcgetattr(terminal) == before
