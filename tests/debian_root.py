"""Folders that each hold a whole small Debian of another suite, with a server that this machine's own Debian lacks.

A folder has scripts that run its programs: the tests start them as they start an installed server. It is made once, as
root on Debian or Ubuntu, in about two minutes. It sees this machine's folder for temporary files, where servers keep
their data.
"""

import platform
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.debian import NotInstalled, can_install, install, one_at_a_time, run

#: Where servers are kept that this machine's own Debian lacks.
ROOTS = Path("/var/cache/palermo-tests")

_MIRROR = "http://deb.debian.org/debian"


def scripts_of(name: str, *, suite: str, package: str, programs: Iterable[str]) -> Path:
    """The folder of the scripts that start these programs of a package. Makes the root first, if it is not there.

    `name` is that of the folder. Raises NotInstalled.
    """
    root = ROOTS / name
    if not (root / "made").exists() or not _is_shared(root, tempfile.gettempdir()):
        if not can_install():
            raise NotInstalled(f"{name}: only root on a Debian or Ubuntu system can make its folder.")
        with one_at_a_time(name):
            _make(root, suite, package, programs)
    return root / "scripts"


def _make(root: Path, suite: str, package: str, programs: Iterable[str]) -> None:
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
        if not _is_shared(root, shared):
            run("mount", "--bind", shared, str(place))
    if not (root / "made").exists():
        run("chroot", str(root), "apt-get", "install", "-y", "-qq", "--no-install-recommends", package)
        _write_scripts(root, programs)
        (root / "made").touch()


def _is_shared(root: Path, folder: str) -> bool:
    """Whether the version's folder sees this one. Not by os.path.ismount, which knows no mount from the same disk."""
    place = Path(f"{root}{folder}")
    return place.exists() and place.samefile(folder)


def _write_scripts(root: Path, programs: Iterable[str]) -> None:
    place = root / "scripts"
    place.mkdir(exist_ok=True)
    for program in programs:
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
