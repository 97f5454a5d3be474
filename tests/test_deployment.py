"""The files that deploy Palermo give a worker time to stop, and their health checks tell what is true."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from palermo.core.times import parse_duration
from palermo.worker.signals import SHUTDOWN_TIMEOUT
from tests.doc_pages import ROOT
from tests.helpers import eventually
from tests.rabbitmq_node import free_port

pytestmark = pytest.mark.slow

_SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
_UNIT = ROOT / "examples/systemd/palermo@.service"
_DOCKERFILE = (ROOT / "Dockerfile").read_text()

#: Seconds in which a stopped worker cleans up after its shutdown timeout.
_CLEAN_UP = 3

#: Seconds between health checks. Each is a process, and takes from what it waits for.
EVERY = 0.5


def test_a_deployed_worker_has_time_to_stop_and_to_wait_for_its_broker() -> None:
    manifest = yaml.safe_load_all((ROOT / "docs/guides/kubernetes/worker.yml").read_text())
    [pod] = [each["spec"]["template"]["spec"] for each in manifest if each["kind"] == "Deployment"]
    [worker] = pod["containers"]
    [unit_timeout] = re.findall(r"^TimeoutStopSec=(.*)$", _UNIT.read_text(), re.MULTILINE)
    stop_times = (
        parse_duration(_SERVICES["worker"]["stop_grace_period"]),
        pod["terminationGracePeriodSeconds"],
        parse_duration(unit_timeout),
    )

    assert min(stop_times) > SHUTDOWN_TIMEOUT + _CLEAN_UP
    assert worker["livenessProbe"]["periodSeconds"] * worker["livenessProbe"]["failureThreshold"] > 600


@contextmanager
def running(command: list[str], **options: Any) -> Iterator[None]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    try:
        yield
    finally:
        process.terminate()
        process.wait(90)


@pytest.fixture
def container(tmp_path: Path) -> dict[str, Any]:
    """The directory and environment that a process of a container has."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    url = f"sqlite:////{tmp_path}/jobs.db"
    environment = {**os.environ, "PATH": path, "PALERMO_URL": url, "PYTHONDONTWRITEBYTECODE": "1"}
    return {"cwd": ROOT / "examples", "env": environment}


def succeeds(check: list[str], **options: Any) -> bool:
    return subprocess.run(check, capture_output=True, timeout=90, check=False, **options).returncode == 0


def test_a_worker_is_healthy_while_it_runs(container: dict[str, Any], tmp_path: Path) -> None:
    of_the_image = _DOCKERFILE.rpartition("HEALTHCHECK")[2].partition("CMD ")[2].partition("\n")[0]
    pidfile = _SERVICES["worker"]["command"][-1]
    command, composed = (
        [str(tmp_path / "pid") if word == pidfile else word for word in words]
        for words in (["palermo", *_SERVICES["worker"]["command"]], _SERVICES["worker"]["healthcheck"]["test"][1:])
    )
    checks = [["sh", "-c", of_the_image], composed]

    assert [succeeds(check, **container) for check in checks] == [False, False]
    with running(command, **container):
        for check in checks:
            eventually(lambda check=check: succeeds(check, **container), every=EVERY)
    eventually(lambda: not succeeds(checks[0], **container), every=EVERY)


def test_composed_pages_are_healthy_while_they_run(container: dict[str, Any], tmp_path: Path) -> None:
    made = subprocess.run(
        ["palermo", "web-user", "anna"], input="one two three", capture_output=True, text=True, check=True, **container
    )
    (tmp_path / "users").write_text(made.stdout)
    port = str(free_port())
    words = {"0.0.0.0": "127.0.0.1", _SERVICES["pages"]["command"][-1]: str(tmp_path / "users")}
    command = ["palermo", *(words.get(word, word) for word in _SERVICES["pages"]["command"]), "--port", port]
    check = [word.replace(":3000/", f":{port}/") for word in _SERVICES["pages"]["healthcheck"]["test"][1:]]

    assert not succeeds(check, **container)
    with running(command, **container):
        eventually(lambda: succeeds(check, **container), every=EVERY)
