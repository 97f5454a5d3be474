"""`palermo status` and `palermo wait`: what becomes of jobs, in a terminal and for scripts."""

import os
import time
from typing import Any

import pytest

from palermo.client.client import Client
from palermo.core.journal_records import Record, encode
from tests.cli.conftest import Palermo, on_terminal, read_until


def write(client: Client, *records: Record) -> None:
    client.run(lambda broker: broker.journal.append(encode("pid:1@h", records)))


def about(id: str, kind: str, **more: Any) -> Record:
    return {"kind": kind, "at": time.time(), "id": id, "job": "shop.resize", "queue": "jobs", "attempt": 1, **more}


def returned(id: str, text: str, **more: Any) -> Record:
    return about(id, "succeeded", took=1.25, slot=1, result={"content_type": "application/json", "text": text}, **more)


def test_waiting_prints_how_each_ended_and_what_it_returned(palermo: Palermo, client: Client) -> None:
    write(client, returned("a", '{"when": {"$palermo": "date", "value": "2026-01-02"}}'), returned("b", "3"))
    write(client, about("c", "failed", error="ValueError", message="no\nway"), about("d", "discarded", reason="gone"))
    write(client, about("e", "succeeded", took=0.1, refused="the result is too large"))

    done = palermo("wait", "a", "b")
    mixed = palermo("wait", "c", "d", "e", code=1)
    unknown = palermo("wait", "b", "nobody", code=4)  # the one that is known is told
    rows = palermo.rows("wait", "a", "c", code=1)

    assert done.stdout == 'a: done in 1.250 s {"when": "2026-01-02"}\nb: done in 1.250 s 3\n'
    assert mixed.stdout.splitlines() == [
        "c: failed (ValueError: no way)",
        "d: discarded (gone)",
        "e: done in 0.100 s (the result is too large)",
    ]
    assert unknown.stdout == "b: done in 1.250 s 3\n"
    assert [(row["id"], row["state"], row["result"], row["error"]) for row in rows] == [
        ("a", "done", {"when": "2026-01-02"}, ""),
        ("c", "failed", None, "ValueError"),
    ]


def test_a_wait_shows_what_a_job_reports(palermo: Palermo, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    id = palermo("enqueue", "shop.resize", "-q", "jobs", "--keep-result").stdout.strip()
    later = about(id, "progress", fraction=0.4, text="page 40 of 100", at=time.time() + 60)
    write(client, about(id, "log", text="\x1b[31mline"), later)

    shown = palermo("wait", id, "--timeout", "2", code=1).stderr

    assert shown.splitlines()[:2] == [f"{id}: \\x1b[31mline", f"{id}: 40% page 40 of 100"]
    monkeypatch.setenv("PALERMO_JOURNAL", "off")
    assert "JournalOff" in palermo("wait", id, code=1).stderr


def test_the_progress_of_a_job_that_has_ended_is_not_shown(palermo: Palermo, client: Client) -> None:
    write(
        client, about("a", "progress", fraction=0.0), about("a", "retried", delay=5.0, message="no"), returned("a", "1")
    )

    assert palermo("wait", "a").stderr == "a: failed, retried in 5 s: no\n"


def test_a_terminal_shows_a_bar(client: Client, url: str) -> None:
    write(
        client, about("a", "progress", fraction=0.4, text="page [40] of 100"), about("a", "log", text="[b]a line[/b]")
    )
    write(client, returned("a", "1"))

    with on_terminal(["wait", "a"], url, NO_COLOR="1") as (terminal, pid):
        shown = read_until(terminal, "a: done in 1.250 s 1")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    assert "a: [b]a line[/b]" in shown
    assert "shop.resize a" in shown
    assert "page [40] of 100" in shown
