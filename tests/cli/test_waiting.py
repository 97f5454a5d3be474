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


def test_a_wait_shows_what_a_job_reports(palermo: Palermo, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    id = palermo("enqueue", "shop.resize", "-q", "jobs", "--keep-result").stdout.strip()
    later = about(id, "progress", fraction=0.4, text="page 40 of 100", at=time.time() + 60)
    write(client, about(id, "log", text="\x1b[31mline"), later)

    shown = palermo("wait", id, "--timeout", "2", code=1).stderr

    assert shown.splitlines()[:2] == [f"{id}: \\x1b[31mline", f"{id}: 40% page 40 of 100"]
    monkeypatch.setenv("PALERMO_JOURNAL", "off")
    assert "JournalOff" in palermo("wait", id, code=1).stderr


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
