"""The files that deploy Palermo: Compose, Dockerfile, Kubernetes, systemd and GitHub workflows.

The tool that reads a file checks it where one can be installed. The tests here hold what no such tool knows: the
commands, the variables and the stop times are those of this version.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from palermo.cli import main
from palermo.core.times import parse_duration
from palermo.settings.settings import Settings
from palermo.worker.signals import SHUTDOWN_TIMEOUT
from tests.doc_pages import ROOT
from tests.helpers import eventually
from tests.rabbitmq_node import free_port
from tests.test_examples import parse

pytestmark = pytest.mark.slow


_SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
_MANIFESTS = sorted((ROOT / "docs/guides/kubernetes").glob("*.yml"))
_OBJECTS: list[dict[str, Any]] = [each for path in _MANIFESTS for each in yaml.safe_load_all(path.read_text())]
_CONTAINERS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (each["spec"]["template"]["spec"], container)
    for each in _OBJECTS
    if each["kind"] == "Deployment"
    for container in each["spec"]["template"]["spec"]["containers"]
]
_UNIT = ROOT / "examples/systemd/palermo@.service"
_WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
_DOCKERFILE = (ROOT / "Dockerfile").read_text()

#: Seconds in which a stopped worker cleans up after its shutdown timeout.
_CLEAN_UP = 3


def unit_settings() -> dict[str, str]:
    lines = [line for line in _UNIT.read_text().splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def commands() -> Iterator[tuple[str, list[str]]]:
    """The file or service and the arguments of each `palermo` command that the files run."""
    for name, service in _SERVICES.items():
        if "build" in service:
            yield f"compose {name}", service["command"]
        program, *arguments = service["healthcheck"]["test"][1:]
        if program == "palermo":
            yield f"compose {name} healthcheck", arguments
    for _, container in _CONTAINERS:
        yield f"kubernetes {container['name']}", container["args"]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if "exec" in container.get(probe, {}):
                yield f"kubernetes {container['name']} {probe}", container[probe]["exec"]["command"][1:]
    (example,) = re.findall(r"^#   WORKER_OPTIONS=(.*)$", _UNIT.read_text(), re.MULTILINE)
    yield "systemd", shlex.split(unit_settings()["ExecStart"].replace("$WORKER_OPTIONS", example))[1:]


def variables() -> Iterator[str]:
    """The variables that the files set or document."""
    for path in [ROOT / "docker-compose.yml", _UNIT, *_MANIFESTS]:
        yield from re.findall(r"\bPALERMO_[A-Z_]+\b", path.read_text())


@pytest.mark.parametrize(
    ("schema", "path"),
    [("compose-spec", ROOT / "docker-compose.yml"), *(("github-workflows", path) for path in _WORKFLOWS)],
    ids=lambda each: each.name if isinstance(each, Path) else each,
)
def test_file_matches_the_schema_of_its_reader(schema: str, path: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", ["1.28", kubernetes_validate.latest_version()])
def test_kubernetes_accepts_every_manifest(version: str) -> None:
    for each in _OBJECTS:
        if not each["apiVersion"].startswith("keda.sh/"):
            kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "palermo@mail.service"
    unit.write_text(_UNIT.read_text().replace("/opt/palermo/bin/palermo", "/bin/true"))

    command = ["systemd-analyze", "verify", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert [line for line in done.stderr.splitlines() if unit.name in line] == []


@pytest.mark.parametrize("arguments", [pytest.param(arguments, id=name) for name, arguments in commands()])
def test_deployed_command_exists_with_its_options(arguments: list[str]) -> None:
    parse(main, arguments)


def test_every_deployed_variable_is_a_setting() -> None:
    assert set(variables()) <= {f"PALERMO_{name.upper()}" for name in Settings.__struct_fields__}


def test_a_deployed_worker_has_time_to_stop() -> None:
    (pod,) = [pod for pod, container in _CONTAINERS if container["args"][0] == "worker"]

    for seconds in (
        parse_duration(_SERVICES["worker"]["stop_grace_period"]),
        pod["terminationGracePeriodSeconds"],
        parse_duration(unit_settings()["TimeoutStopSec"]),
    ):
        assert seconds > SHUTDOWN_TIMEOUT + _CLEAN_UP


def test_kubernetes_waits_ten_minutes_for_the_broker() -> None:
    (worker,) = [container for _, container in _CONTAINERS if container["args"][0] == "worker"]

    assert worker["livenessProbe"]["periodSeconds"] * worker["livenessProbe"]["failureThreshold"] > 600


def test_images_and_actions_are_pinned() -> None:
    images = [service["image"] for service in _SERVICES.values() if "build" not in service]
    images += re.findall(r"^FROM (\S+)", _DOCKERFILE, re.MULTILINE)
    actions = [used for path in _WORKFLOWS for used in re.findall(r"uses: (.*)", path.read_text())]

    assert [each for each in images if not re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", each)] == []
    assert [each for each in actions if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", each)] == []


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


def test_the_image_is_healthy_while_a_worker_runs(container: dict[str, Any]) -> None:
    health = _DOCKERFILE.rpartition("HEALTHCHECK")[2].partition("CMD ")[2].partition("\n")[0]
    command: list[str] = _SERVICES["worker"]["command"]

    assert not succeeds(["sh", "-c", health], **container)
    with running(["palermo", *command[: command.index("--pidfile")]], **container):
        eventually(lambda: succeeds(["sh", "-c", health], **container))
    eventually(lambda: not succeeds(["sh", "-c", health], **container))


def test_a_composed_worker_is_healthy_while_it_answers(container: dict[str, Any], tmp_path: Path) -> None:
    pidfile = _SERVICES["worker"]["command"][-1]
    command, check = (
        [str(tmp_path / "pid") if word == pidfile else word for word in words]
        for words in (["palermo", *_SERVICES["worker"]["command"]], _SERVICES["worker"]["healthcheck"]["test"][1:])
    )

    assert not succeeds(check, **container)
    with running(command, **container):
        eventually(lambda: succeeds(check, **container))


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
        eventually(lambda: succeeds(check, **container))
