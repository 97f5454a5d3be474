"""The systemd unit and docs/guides/deploying.md, held against the real command line."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from palermo.cli import main
from palermo.core.times import parse_duration
from palermo.worker.signals import SHUTDOWN_TIMEOUT
from tests.test_compose import parsed

_REPOSITORY = Path(__file__).parents[1]
_UNIT = _REPOSITORY / "examples" / "systemd" / "palermo@.service"
_DOCUMENT = (_REPOSITORY / "docs" / "guides" / "deploying.md").read_text()


def settings() -> dict[str, str]:
    lines = [line for line in _UNIT.read_text().splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def test_the_unit_starts_a_worker_with_the_options_of_its_own_example() -> None:
    (example,) = re.findall(r"^#   WORKER_OPTIONS=(.*)$", _UNIT.read_text(), re.MULTILINE)

    program, *arguments = shlex.split(settings()["ExecStart"].replace("$WORKER_OPTIONS", example))

    assert program.endswith("/palermo")
    assert parsed(arguments).params["queues"] == ("mail",)


def test_the_unit_gives_a_worker_longer_to_stop_than_it_takes() -> None:
    assert parse_duration(settings()["TimeoutStopSec"]) > SHUTDOWN_TIMEOUT


def test_the_unit_speaks_the_protocol_that_the_worker_does() -> None:
    unit = settings()

    assert (unit["Type"], unit["KillMode"], unit["User"]) == ("notify", "mixed", "palermo-%i")
    assert "WatchdogSec" in unit


def test_the_unit_gives_jobs_no_more_than_they_need() -> None:
    unit = settings()

    assert (unit["UMask"], unit["ProtectHome"], unit["CapabilityBoundingSet"]) == ("0077", "true", "")
    if shutil.which("systemd-analyze") is None:
        return
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=45", str(_UNIT)]
    if "--offline" not in subprocess.run([command[0], "--help"], capture_output=True, text=True, timeout=60).stdout:
        return
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_systemd_itself_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    """Where there is no systemd nothing is asked; the tests above hold everywhere."""
    if shutil.which("systemd-analyze") is None:
        return
    unit = tmp_path / "palermo@mail.service"
    unit.write_text(_UNIT.read_text().replace("/opt/palermo/bin/palermo", "/bin/true"))

    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)

    assert [line for line in done.stderr.splitlines() if unit.name in line] == []


@pytest.mark.parametrize("line", re.findall(r"^palermo (check.*?|doctor.*?)(?:  +#.*)?$", _DOCUMENT, re.MULTILINE))
def test_every_command_of_the_document_is_one(line: str) -> None:
    parsed(shlex.split(line))


@pytest.mark.parametrize("command", ["check", "doctor"])
def test_every_option_of_the_operators_commands_is_documented(command: str) -> None:
    everywhere = {"--url", "--exchange", "--debug", "--help", "--json"}
    everywhere |= {"--host", "--port", "--user", "--vhost", "--password-file"}
    found = main.get_command(main.make_context("palermo", [command]), command)
    assert found is not None

    options = {name for each in found.params for name in each.opts if name.startswith("--")}

    assert [name for name in sorted(options - everywhere) if name not in _DOCUMENT] == []
