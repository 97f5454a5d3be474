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

from tests.debian import NotInstalled, first_of, one_at_a_time

_ADVICE = """no promtool for the tests of alert rules. Do one of these and run them again:
  * install Prometheus (Debian, Ubuntu: apt-get install prometheus; macOS: brew install prometheus);
  * set PALERMO_TEST_PROMTOOL=/path/to/promtool."""


@cache
def find() -> Path:
    """The program. May take a minute the first time: it may download it. Raises NotInstalled."""
    given = os.environ.get("PALERMO_TEST_PROMTOOL") or shutil.which("promtool")
    if given:
        return Path(given)
    return first_of(_ADVICE, _unpacked)


#: Only root may renew the lists of packages, where these are older than what the mirror has.
_UNPACK = """
apt-get -q download prometheus || { apt-get -q update && apt-get -q download prometheus; }
dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool
rm prometheus_*.deb
"""


def _unpacked() -> Path:
    """The one in Debian's package of the server, of which nothing else is wanted."""
    folder = Path(tempfile.gettempdir()) / f"palermo-tests-promtool-{os.getuid()}"
    program = folder / "usr" / "bin" / "promtool"
    with one_at_a_time("promtool"):
        if not program.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
            done = subprocess.run(["sh", "-euc", _UNPACK], cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode:
                raise NotInstalled(f"apt-get download prometheus: {(done.stdout + done.stderr)[-500:]}")
    return program
