"""docker-compose.yml and the Dockerfile, held against the real command line: no Docker needed to see that they fit."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from palermo.cli import main
from palermo.core.address import parse_url
from palermo.core.times import parse_duration
from palermo.settings.settings import Settings
from palermo.worker.signals import SHUTDOWN_TIMEOUT
from tests.helpers import eventually
from tests.rabbitmq_node import free_port

_REPOSITORY = Path(__file__).parents[1]
_COMPOSE: dict[str, Any] = yaml.safe_load((_REPOSITORY / "docker-compose.yml").read_text())
_SERVICES: dict[str, dict[str, Any]] = _COMPOSE["services"]
_OURS = [name for name, service in _SERVICES.items() if "build" in service]


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions and their arguments, continued lines joined and comments left out."""
    text = re.sub(r"^#.*\n", "", (_REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines if line.strip())]


def last(instruction: str) -> str:
    """The argument of the last such instruction, the one that counts."""
    return [rest for name, rest in instructions() if name == instruction][-1]


def parsed(arguments: list[str]) -> click.Context:
    """What the real command line makes of these arguments; raises click.UsageError."""
    name, *rest = arguments
    group = main.make_context("palermo", [name])
    command = main.get_command(group, name)
    assert command is not None, f"there is no command {name!r}"
    return command.make_context(name, rest, parent=group)


def folder_at(service: dict[str, Any], inside: str) -> Path:
    """The folder of this repository that a service sees there."""
    volumes: list[str] = service["volumes"]
    for volume in volumes:
        source, target, *_ = volume.split(":")
        if target == inside:
            return _REPOSITORY / source
    raise AssertionError(f"nothing is mounted at {inside}")


def test_docker_compose_would_read_the_file() -> None:
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        "docker-compose.yml",
    ]
    done = subprocess.run(command, cwd=_REPOSITORY, capture_output=True, text=True, timeout=100)

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_broker_a_worker_and_the_pages_are_there() -> None:
    assert set(_SERVICES) == {"rabbitmq", "worker", "pages"}
    assert _SERVICES["rabbitmq"]["image"].startswith("rabbitmq:4-management@")


def test_images_of_others_are_pinned_by_their_digests() -> None:
    composed = [service["image"] for service in _SERVICES.values() if "build" not in service]
    bases = [rest.split()[0] for name, rest in instructions() if name == "FROM"]

    assert len(composed) == 1
    assert len(bases) == 2
    for image in composed + bases:
        assert re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", image), image


@pytest.mark.parametrize("name", _OURS)
def test_every_command_is_one_that_palermo_understands(name: str) -> None:
    parsed(_SERVICES[name]["command"])


def test_the_worker_serves_a_module_that_is_mounted_where_it_starts() -> None:
    context = parsed(_SERVICES["worker"]["command"])

    folder = folder_at(_SERVICES["worker"], last("WORKDIR"))

    assert context.info_name == "worker"
    for module in context.params["modules"]:
        assert (folder / f"{module}.py").is_file()


@pytest.mark.parametrize("name", _OURS)
def test_palermo_is_wired_by_variables_that_it_reads(name: str) -> None:
    known = {f"PALERMO_{name.upper()}" for name in Settings.__struct_fields__}

    assert set(_SERVICES[name]["environment"]) <= known


def test_the_brokers_password_is_one_of_ones_own() -> None:
    """Compose refuses to start while it is not set, and says what to do; nobody knows it from this file."""
    secret = _SERVICES["rabbitmq"]["environment"]["RABBITMQ_DEFAULT_PASS"]

    assert re.fullmatch(r"\$\{RABBITMQ_PASSWORD:\?[^}]+\}", secret)
    assert "RABBITMQ_PASSWORD=$(openssl rand" in (_REPOSITORY / "docker-compose.yml").read_text()
    assert ".env" in (_REPOSITORY / ".gitignore").read_text().split()


@pytest.mark.parametrize("name", _OURS)
def test_the_url_names_the_broker_of_this_file_and_its_user(name: str) -> None:
    address = parse_url(_SERVICES[name]["environment"]["PALERMO_URL"])

    [(host, port)] = address.hosts
    broker = _SERVICES[host]

    assert port == 5672
    assert (address.username, address.password) == (
        broker["environment"]["RABBITMQ_DEFAULT_USER"],
        broker["environment"]["RABBITMQ_DEFAULT_PASS"].partition(":")[0] + "}",
    )
    assert _SERVICES[name]["depends_on"] == {host: {"condition": "service_healthy"}}


def test_ports_are_those_of_the_broker_and_the_pages_and_open_to_this_machine_only() -> None:
    assert _SERVICES["rabbitmq"]["ports"] == ["127.0.0.1:5672:5672", "127.0.0.1:15672:15672"]
    assert _SERVICES["pages"]["ports"] == ["127.0.0.1:3000:3000"]
    assert "ports" not in _SERVICES["worker"]


def test_the_pages_start_when_they_are_asked_for_and_only_with_users() -> None:
    """Without the file of users compose says that it is missing; it makes no folder in its place."""
    pages = _SERVICES["pages"]
    (users,) = [each for each in pages["volumes"] if isinstance(each, dict)]

    assert pages["profiles"] == ["pages"]
    assert parsed(pages["command"]).params["users"] == users["target"]
    assert users["bind"] == {"create_host_path": False}
    assert "web-user anna --role admin > users" in (_REPOSITORY / "docker-compose.yml").read_text()
    assert "/users" in (_REPOSITORY / ".gitignore").read_text().split()


def test_the_broker_is_healthy_once_it_accepts_connections() -> None:
    assert _SERVICES["rabbitmq"]["healthcheck"]["test"] == [
        "CMD",
        "rabbitmq-diagnostics",
        "-q",
        "check_port_connectivity",
    ]


def test_what_the_broker_stored_outlives_its_container() -> None:
    broker = _SERVICES["rabbitmq"]

    assert broker["volumes"] == ["rabbitmq:/var/lib/rabbitmq"]
    assert broker["hostname"]
    assert "rabbitmq" in _COMPOSE["volumes"]


def test_the_worker_is_given_longer_to_stop_than_it_takes() -> None:
    assert parse_duration(_SERVICES["worker"]["stop_grace_period"]) > SHUTDOWN_TIMEOUT


def test_the_image_runs_palermo_as_a_user_who_is_not_root() -> None:
    user = last("USER")

    assert user not in ("root", "0")
    assert any(name == "RUN" and rest.startswith("useradd") and rest.endswith(user) for name, rest in instructions())
    assert last("ENTRYPOINT") == '["palermo"]'


def test_the_image_has_a_python_that_palermo_supports() -> None:
    project = tomllib.loads((_REPOSITORY / "pyproject.toml").read_text())["project"]
    bases = {rest.split()[0] for name, rest in instructions() if name == "FROM"}

    assert len(bases) == 1
    version = re.fullmatch(r"python:(\d+\.\d+)-slim@\S+", bases.pop())
    assert version is not None
    assert f"Programming Language :: Python :: {version[1]}" in project["classifiers"]


def test_everything_that_is_copied_exists_and_is_not_ignored() -> None:
    ignored = (_REPOSITORY / ".dockerignore").read_text().split()
    copied = [rest.split()[:-1] for name, rest in instructions() if name == "COPY" and not rest.startswith("--from")]

    for name in [name for names in copied for name in names]:
        assert (_REPOSITORY / name).exists(), name
        assert f"!{name}" in ignored


def test_everything_that_the_package_is_built_from_is_copied() -> None:
    project = tomllib.loads((_REPOSITORY / "pyproject.toml").read_text())
    copied = {name for kind, rest in instructions() if kind == "COPY" for name in rest.split()[:-1]}
    needed = {"palermo", "pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    needed |= {folder.partition("/")[0] for folder in project["tool"]["setuptools"]["package-dir"].values()}

    assert needed <= copied


@contextmanager
def running(command: list[str], **options: Any) -> Iterator[None]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    try:
        yield
    finally:
        process.terminate()
        process.wait(90)


def surroundings(folder: Path) -> dict[str, Any]:
    """What a process of our containers has around it, as far as that goes without one."""
    return {
        "cwd": folder_at(_SERVICES["worker"], last("WORKDIR")),
        "env": os.environ
        | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        | {"PALERMO_URL": f"sqlite:////{folder}/jobs.db", "PYTHONDONTWRITEBYTECODE": "1"},
    }


def test_the_image_is_healthy_while_its_worker_runs_and_only_then(tmp_path: Path) -> None:
    check = last("HEALTHCHECK").partition("CMD ")[2]
    command: list[str] = _SERVICES["worker"]["command"]
    options = surroundings(tmp_path)

    def healthy() -> bool:
        return subprocess.run(["sh", "-c", check], capture_output=True, timeout=90, **options).returncode == 0

    assert not healthy()
    with running(["palermo", *command[: command.index("--pidfile")]], **options):
        eventually(healthy)
    eventually(lambda: not healthy())


def test_the_service_is_healthy_while_the_worker_with_its_pidfile_answers(tmp_path: Path) -> None:
    pidfile = _SERVICES["worker"]["command"][-1]
    command, check = (
        [str(tmp_path / "pid") if part == pidfile else part for part in parts]
        for parts in (["palermo", *_SERVICES["worker"]["command"]], _SERVICES["worker"]["healthcheck"]["test"][1:])
    )
    options = surroundings(tmp_path)

    def healthy() -> bool:
        return subprocess.run(check, capture_output=True, timeout=90, **options).returncode == 0

    assert _SERVICES["worker"]["healthcheck"]["test"][0] == "CMD"
    assert check[-1] == command[-1]
    assert not healthy()
    with running(command, **options):
        eventually(healthy)
    eventually(lambda: not healthy())


def test_the_pages_are_healthy_while_they_and_their_broker_answer(tmp_path: Path) -> None:
    options = surroundings(tmp_path)
    made = ["palermo", "web-user", "anna"]
    (tmp_path / "users").write_text(
        subprocess.run(made, input="one two three", capture_output=True, text=True, check=True, **options).stdout
    )
    port = str(free_port())
    pages = _SERVICES["pages"]
    here = {"0.0.0.0": "127.0.0.1", pages["command"][-1]: str(tmp_path / "users")}
    command = ["palermo", *(here.get(word, word) for word in pages["command"]), "--port", port]
    check = [word.replace(":3000/", f":{port}/") for word in pages["healthcheck"]["test"][1:]]

    def healthy() -> bool:
        return subprocess.run(check, capture_output=True, timeout=90, **options).returncode == 0

    assert port in check[-1]
    assert not healthy()
    with running(command, **options):
        eventually(healthy)
    assert not healthy()
