"""Prometheus's promtool, which reads and runs alert rules: the first of these that is here, or can be had.

    PALERMO_TEST_PROMTOOL       the path of one
    promtool                    on the PATH
    apt-get download            on Debian and Ubuntu, unpacked for the tests alone

Where none can be had its tests fail, and say what to install.
"""

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tests.debian import NotInstalled, can_install, one_at_a_time

_ADVICE = """no promtool for the tests of alert rules. Do one of these and run them again:
  * install Prometheus (Debian, Ubuntu: apt-get install prometheus; macOS: brew install prometheus);
  * set PALERMO_TEST_PROMTOOL=/path/to/promtool.
What was tried:"""


@cache
def find() -> Path:
    """The program. May take a minute the first time: it may download it. Raises NotInstalled."""
    given = os.environ.get("PALERMO_TEST_PROMTOOL") or shutil.which("promtool")
    if given:
        return Path(given)
    try:
        return _unpacked()
    except NotInstalled as error:
        raise NotInstalled(f"{_ADVICE}\n  * {error}") from None


def _unpacked() -> Path:
    """The one in Debian's package of the server, of which nothing else is wanted."""
    if not all(map(shutil.which, ("apt-get", "dpkg-deb"))):
        raise NotInstalled("apt-get download prometheus: not a Debian or Ubuntu system.")
    folder = Path(tempfile.gettempdir()) / f"palermo-tests-promtool-{os.getuid()}"
    program = folder / "usr" / "bin" / "promtool"
    with one_at_a_time("promtool"):
        if program.exists():
            return program
        folder.mkdir(mode=0o700, exist_ok=True)
        if _run("apt-get", "-q", "download", "prometheus", into=folder) and can_install():
            _run("apt-get", "-q", "update", into=folder)
        if not list(folder.glob("*.deb")) and (failure := _run("apt-get", "-q", "download", "prometheus", into=folder)):
            raise NotInstalled(f"apt-get download prometheus: {failure[-500:]}")
        [package] = folder.glob("*.deb")
        if failure := _run("sh", "-c", f"dpkg-deb --fsys-tarfile {package} | tar -x ./usr/bin/promtool", into=folder):
            raise NotInstalled(f"unpacking {package}: {failure[-500:]}")
        package.unlink()
        return program


def _run(*command: str, into: Path) -> str:
    """What it said if it failed; "" if it did not."""
    done = subprocess.run(command, cwd=into, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    return done.stdout + done.stderr or "it failed" if done.returncode else ""
