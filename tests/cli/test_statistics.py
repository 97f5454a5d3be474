"""`palermo stats` and `palermo top`."""

import json
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
from tests.harness.golden import assert_golden
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

    assert_golden("screens", "top", shown(scene))
    assert_golden("screens", "top-as-json", json.dumps(scene.row(), indent=1))


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
