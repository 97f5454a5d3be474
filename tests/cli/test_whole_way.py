"""Enqueue, work, fail, look, requeue, work: each step a command of its own, on both brokers."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.brokers import BROKERS, url_of_broker
from tests.helpers import eventually

pytestmark = pytest.mark.slow


COMMAND = str(Path(sys.executable).with_name("palermo"))

SHOP = """
import palermo

@palermo.job(queue="mail")
def send(to):
    if to == "nobody":
        raise LookupError("no such address")
    with open("sent.txt", "a") as sent:
        sent.write(to + " ")
"""

Shell = Callable[..., str]


@pytest.fixture(params=BROKERS)
def environment(request: pytest.FixtureRequest, tmp_path: Path, exchange: str) -> dict[str, str]:
    (tmp_path / "shop.py").write_text(SHOP)
    broker = {
        "PALERMO_URL": url_of_broker(request, tmp_path),
        "PALERMO_EXCHANGE": exchange,
        "PALERMO_PUBLISH_TIMEOUT": "30",
    }
    return {**os.environ, **broker}


@pytest.fixture
def shell(environment: dict[str, str], tmp_path: Path) -> Shell:
    def run(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [COMMAND, *arguments],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout

    return run


def rows(shell: Shell, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(shell(*arguments, "--json"))
    return found


def test_from_enqueue_over_failure_to_requeue(shell: Shell, tmp_path: Path) -> None:
    id = shell("enqueue", "shop.send", "--args", '["nobody"]', "-q", "mail").strip()
    shell("enqueue", "shop.send", "--args", '["ann"]', "-q", "mail")

    shell("worker", "shop", "--burst")

    (failed,) = rows(shell, "failed", "list")
    assert (failed["id"], failed["error"]["class"], failed["retries"]) == (id, "LookupError", 0)
    assert (tmp_path / "sent.txt").read_text() == "ann "

    shell("failed", "requeue", id, "--args", '["bob"]')
    shell("worker", "shop", "--burst")

    assert rows(shell, "failed", "list") == []
    assert (tmp_path / "sent.txt").read_text() == "ann bob "


def test_workers_are_listed_while_they_live(shell: Shell, environment: dict[str, str], tmp_path: Path) -> None:
    worker = subprocess.Popen([COMMAND, "worker", "shop", "-c", "2"], env=environment, cwd=tmp_path)
    try:
        # One that does not answer within a second is listed without what it says of itself.
        row = eventually(lambda: next((row for row in rows(shell, "workers") if row["answers"]), None))
        assert (row["pid"], row["queues"], row["slots"]) == (worker.pid, ["mail"], 2)
        eventually(lambda: {queue["name"]: queue["workers"] for queue in rows(shell, "queues")}.get("mail") == 1)
        eventually(lambda: [row["duties"][:1] for row in rows(shell, "workers")] == [["time"]])
        eventually(lambda: "Leads in" in shell("workers"))
    finally:
        worker.terminate()
        worker.wait(60)

    eventually(lambda: rows(shell, "workers") == [])
