"""`palermo history` and `palermo audit` in a terminal."""

import json

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
    rows = json.loads(palermo("history", "--json").stdout)
    assert [(row["id"], row["state"]) for row in rows] == [("c", "discarded"), ("b", "failed"), ("a", "done")]

    table = palermo("history", "--limit", "2")
    assert "builtins.ValueError: no such thing" in table.stdout
    assert "page 1: 2 jobs" in table.stderr
    assert palermo("history", "--job", "shop.s*", "--longer", "0.2s").stdout.count("shop.send") == 1
    assert palermo("history", "--since", "1m").stderr == "no finished jobs in the journal.\n"


@pytest.mark.usefixtures("told")
def test_the_life_of_one_job(palermo: Palermo) -> None:
    steps = json.loads(palermo("history", "a", "--json").stdout)
    assert [step["kind"] for step in steps] == ["enqueued", "succeeded"]
    known = palermo("history", "b")
    assert ("requeue" in known.stdout, known.stderr) == (True, "")
    assert "nobody" in palermo("history", "nobody", code=4).stderr


@pytest.mark.usefixtures("told")
def test_who_did_what(palermo: Palermo) -> None:
    rows = json.loads(palermo("audit", "--json").stdout)
    assert [(row["by"], row["action"]) for row in rows] == [("bert", "pause"), ("anna", "requeue")]
    table = palermo("audit", "--by", "anna", "--limit", "1")
    assert "requeue" in table.stdout
    assert "pause" not in table.stdout
    assert palermo("audit", "--action", "purge").stderr == "no actions in the journal.\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["history", "--state", "finished"],
        ["history", "--since", "soon"],
        ["history", "a", "--queue", "mail"],
        ["history", "--longer", "soon"],
        ["audit", "--limit", "0"],
    ],
)
def test_wrong_usage_is_one_line_and_ends_in_2(palermo: Palermo, arguments: list[str]) -> None:
    assert len(palermo(*arguments, code=2).stderr.splitlines()) == 1
