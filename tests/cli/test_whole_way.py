"""Enqueue, work, fail, look, requeue, work: each step a command of its own, on RabbitMQ."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Process

pytestmark = pytest.mark.slow

SHOP = """
import palermo

@palermo.job(queue="mail")
def send(to):
    if to == "nobody":
        raise LookupError("no such address")
    with open("sent.txt", "a") as sent:
        sent.write(to + " ")
"""


def test_a_shell_leads_a_job_from_enqueue_over_failure_to_requeue(
    process: Process, rabbitmq_url: str, exchange: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)

    def shell(*arguments: str) -> str:
        broker = {"PALERMO_URL": rabbitmq_url, "PALERMO_EXCHANGE": exchange, "PALERMO_PUBLISH_TIMEOUT": "30"}
        done = process(*arguments, **broker)
        assert done.returncode == 0, done.stderr
        return done.stdout

    id = shell("enqueue", "shop.send", "--args", '["nobody"]', "-q", "mail").strip()
    shell("enqueue", "shop.send", "--args", '["ann"]', "-q", "mail")
    shell("worker", "shop", "--burst")

    (failed,) = json.loads(shell("failed", "list", "--json"))
    assert (failed["id"], failed["error"]["class"], failed["retries"]) == (id, "LookupError", 0)
    assert (tmp_path / "sent.txt").read_text() == "ann "

    shell("failed", "requeue", id, "--args", '["bob"]')
    shell("worker", "shop", "--burst")

    assert json.loads(shell("failed", "list", "--json")) == []
    assert (tmp_path / "sent.txt").read_text() == "ann bob "
