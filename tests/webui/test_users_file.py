"""The file of users is for one user's eyes."""

import logging
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from palermo.webui.security.user_file import UserFile, token_line
from palermo.webui.site import Role


def test_the_file_that_web_user_is_sent_to_is_for_nobody_elses_eyes(tmp_path: Path) -> None:
    users = tmp_path / "users"
    for name in ("ann", "bob"):
        palermo = f"{shlex.quote(sys.executable)} -m palermo"
        command = f"umask 022; exec {palermo} web-user {name} --token >> {shlex.quote(str(users))}"
        subprocess.run(["sh", "-c", command], check=True, capture_output=True, timeout=100)

    assert stat.S_IMODE(users.stat().st_mode) == 0o600
    assert len(users.read_text().splitlines()) == 2


@pytest.mark.parametrize(("mode", "told"), [(0o644, True), (0o640, False), (0o600, False)])
def test_a_file_of_users_that_everybody_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, told: bool
) -> None:
    users = tmp_path / "users"
    users.write_text(token_line("ann", Role.ADMIN)[1] + "\n")
    users.chmod(mode)

    UserFile(str(users))

    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [("chmod 600" in line, str(users) in line) for line in lines] == [(True, True)] * told
