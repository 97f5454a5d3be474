"""Programs in other languages enqueue jobs and read failed ones, by docs/internals/wire.md and nothing else."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from palermo.client.client import Client
from palermo.core.topology import amqp_queue
from palermo.settings.settings import Settings
from tests.interop import clients
from tests.interop.clients import ForeignClient

_REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def amqplib() -> ForeignClient:
    return clients.find_amqplib()


@pytest.fixture
def bunny() -> ForeignClient:
    return clients.find_bunny()


@pytest.fixture(params=["amqplib", "bunny"])
def foreign(request: pytest.FixtureRequest) -> ForeignClient:
    client: ForeignClient = request.getfixturevalue(request.param)
    return client


def work_off(url: str, exchange: str, notes: Path) -> list[dict[str, Any]]:
    """Run a real worker until the queue is empty; returns what its jobs wrote down."""
    done = subprocess.run(
        [sys.executable, "-m", "palermo", "worker", "tests.interop.jobs", "--burst", "--exchange", exchange],
        env=os.environ | {"PALERMO_URL": url, "PALERMO_PUBLISH_TIMEOUT": "30", "INTEROP_NOTES": str(notes)},
        cwd=_REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in notes.read_text(encoding="utf-8").splitlines()]


def test_jobs_of_a_foreign_client_run(foreign: ForeignClient, rabbitmq_url: str, exchange: str, tmp_path: Path) -> None:
    foreign.publish(rabbitmq_url, exchange=exchange, queue=amqp_queue(exchange, "jobs"))

    noted = work_off(rabbitmq_url, exchange, tmp_path / "notes")

    assert [(note["args"], note["kwargs"]) for note in noted] == [
        (["positional", 1, 2.5, None, True], {}),
        ([], {"to": "grüße@東京.example", "count": 3}),
        (["both"], {"loud": True}),
        (["single"], {}),
        ([], {}),
    ]
    assert all(note["id"] for note in noted)
    assert [note["id"] for note in noted[3:]] == [f"chosen-by-{foreign.language}", "named-in-a-header"]


def test_a_failed_job_is_read_by_the_client_that_enqueued_it(
    foreign: ForeignClient, rabbitmq_url: str, exchange: str, tmp_path: Path
) -> None:
    began = time.time()
    foreign.publish(rabbitmq_url, exchange=exchange, queue=amqp_queue(exchange, "jobs"))
    work_off(rabbitmq_url, exchange, tmp_path / "notes")

    [failed] = foreign.read(rabbitmq_url, queue=amqp_queue(exchange, "failed"))

    headers = failed.pop("headers")
    assert failed == {
        "id": f"fails-from-{foreign.language}",
        "content_type": "application/json",
        "delivery_mode": 2,
        "body": "[1099511627776]",
    }
    assert "in explode" in headers.pop("stack-trace")
    assert re.fullmatch(r"pid:\d+@.+/worker-1", headers.pop("worker"))
    assert began - 60 < headers.pop("failed-at") < time.time() + 60
    assert headers == {
        "id": f"fails-from-{foreign.language}",
        "job-class": "interop.explode",
        "queue": "jobs",
        "created-at": 1_700_000_000,
        "retries": 0,
        "exception-class": "ValueError",
        "exception-message": "cannot päy 1099511627776",
        "x-small": 7,
        "x-text": "ünchanged",
    }


def test_a_foreign_client_reads_what_python_enqueued(foreign: ForeignClient, rabbitmq_url: str, exchange: str) -> None:
    began = time.time()
    client = Client(Settings(url=rabbitmq_url, exchange=exchange, publish_timeout=30))
    job = client.enqueue("shop.resize", ["grüße.png"], {"width": 640})
    client.close()

    [message] = foreign.read(rabbitmq_url, queue=amqp_queue(exchange, "jobs"))

    headers = message["headers"]
    assert message["id"] == job.id
    assert (message["content_type"], message["delivery_mode"]) == ("application/json", 2)
    assert json.loads(message["body"]) == {"args": ["grüße.png"], "kwargs": {"width": 640}}
    assert (headers["job-class"], headers["queue"], headers["arguments"]) == ("shop.resize", "jobs", "both")
    assert began - 60 < headers["created-at"] < time.time() + 60
    assert "grüße.png" in headers["preview"]
