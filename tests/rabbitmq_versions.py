"""Other versions of RabbitMQ than the installed one, each in a folder that holds a whole small Debian.

A version's folder has scripts that run its programs: the tests start them as they start an installed server.
It is made once, as root on Debian or Ubuntu, in about two minutes: `python -m tests.rabbitmq_versions 4.3` prints
the path of its server. The folder sees this machine's folder for temporary files, where nodes keep their data.
"""

import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.debian import NotInstalled, can_install, install, one_at_a_time, run

#: The Debian suites that have a version. sid goes on to later ones: the tests print what they run on.
SUITES = {"3.10": "bookworm", "4.0": "trixie", "4.3": "sid"}

_ROOTS = Path("/var/cache/palermo-tests")

_MIRROR = "http://deb.debian.org/debian"

#: What the tests start.
_PROGRAMS = (
    "/usr/lib/rabbitmq/bin/rabbitmq-server",
    "/usr/lib/rabbitmq/bin/rabbitmqctl",
    "/usr/lib/erlang/bin/epmd",
    "/usr/lib/erlang/bin/erl_call",
)


def server_of(version: str) -> Path:
    """The script that starts this version's server. Makes the version's folder first, if it is not there.

    Raises NotInstalled.
    """
    if version not in SUITES:
        raise NotInstalled(f"RabbitMQ {version}: known are {', '.join(SUITES)}, or give the path of a rabbitmq-server.")
    root = _ROOTS / f"rabbitmq-{version}"
    if not (root / "made").exists() or not _is_mounted(Path(f"{root}{tempfile.gettempdir()}")):
        if not can_install():
            raise NotInstalled(f"RabbitMQ {version}: only root on a Debian or Ubuntu system can make its folder.")
        with one_at_a_time(f"rabbitmq-{version}"):
            _make(root, SUITES[version])
    return root / "scripts" / "rabbitmq-server"


def name_of(server: Path) -> str:
    """The version that a server is, as it says itself."""
    command = [str(server.with_name("rabbitmqctl")), "version"]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout.strip()


def _make(root: Path, suite: str) -> None:
    if not root.exists():
        if shutil.which("debootstrap") is None:
            install("debootstrap")
        print(f"\nmaking {root} from Debian {suite} …", file=sys.stderr, flush=True)
        new = root.with_name(f"{root.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        new.parent.mkdir(parents=True, exist_ok=True)
        run("debootstrap", "--variant=minbase", "--include=ca-certificates,procps", suite, str(new), _mirror())
        (new / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
        (new / "usr/sbin/policy-rc.d").chmod(0o755)
        (new / "etc/hosts").write_text("127.0.0.1 localhost\n")
        new.rename(root)
    for shared in ("/proc", "/dev", tempfile.gettempdir()):
        place = Path(f"{root}{shared}")
        place.mkdir(parents=True, exist_ok=True)
        if not _is_mounted(place):
            run("mount", "--bind", shared, str(place))
    if not (root / "made").exists():
        run("chroot", str(root), "apt-get", "install", "-y", "-qq", "--no-install-recommends", "rabbitmq-server")
        _write_scripts(root)
        (root / "made").touch()


def _is_mounted(place: Path) -> bool:
    """Whether something is mounted there: also a folder of the same disk, of which os.path.ismount does not know."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return str(place) in {line.split()[1] for line in mounts}


def _write_scripts(root: Path) -> None:
    place = root / "scripts"
    place.mkdir(exist_ok=True)
    for program in _PROGRAMS:
        script = place / Path(program).name
        script.write_text(f'#!/bin/sh\nexec chroot "{root}" {program} "$@"\n')
        script.chmod(0o755)


def _mirror() -> str:
    """Where this machine gets its own packages from, if it is a Debian."""
    if "debian" not in platform.freedesktop_os_release().get("ID", ""):
        return _MIRROR
    for place in Path("/etc/apt").glob("sources.list*"):
        for file in [place, *place.glob("*.sources"), *place.glob("*.list")]:
            if file.is_file():
                for word in file.read_text().split():
                    if word.startswith("http") and word.rstrip("/").endswith("/debian"):
                        return word
    return _MIRROR


if __name__ == "__main__":
    print(server_of(sys.argv[1]))
