"""`palermo history` and `palermo audit` in a terminal."""

import pytest

from palermo.client.client import Client
from tests.cli.conftest import Palermo
from tests.history.written import done_by, ended, enqueued, failed, write


@pytest.fixture
def told(client: Client) -> None:
    write(client, [enqueued("a"), ended("a"), failed("b", job="shop.send"), ended("c", "discarded", reason="too late")])
    write(client, [done_by("anna", "requeue", ids=["b"], count=1), done_by("bert", "pause", queue="mail")], writer="")


@pytest.mark.usefixtures("told")
def test_finished_jobs_newest_first(palermo: Palermo) -> None:
    rows = palermo.rows("history")
    assert [(row["id"], row["state"]) for row in rows] == [("c", "discarded"), ("b", "failed"), ("a", "done")]

    table = palermo("history", "--limit", "2")
    assert "builtins.ValueError: no such thing" in table.stdout
    assert "page 1: 2 jobs" in table.stderr
    assert palermo("history", "--job", "shop.s*", "--longer", "0.2s").stdout.count("shop.send") == 1
    assert palermo.rows("history", "--since", "1m") == []


@pytest.mark.usefixtures("told")
def test_the_life_of_one_job(palermo: Palermo) -> None:
    steps = palermo.rows("history", "a")
    assert [step["kind"] for step in steps] == ["enqueued", "succeeded"]
    known = palermo("history", "b")
    assert ("requeue" in known.stdout, known.stderr) == (True, "")


@pytest.mark.usefixtures("told")
def test_who_did_what(palermo: Palermo) -> None:
    rows = palermo.rows("audit")
    assert [(row["by"], row["action"]) for row in rows] == [("bert", "pause"), ("anna", "requeue")]
    table = palermo("audit", "--by", "anna", "--limit", "1")
    assert "requeue" in table.stdout
    assert "pause" not in table.stdout
