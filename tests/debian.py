"""Installing what a test needs from Debian's or Ubuntu's packages, where we are root and may."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")

_POLICY = Path("/usr/sbin/policy-rc.d")


class NotInstalled(Exception):
    """A program a test needs is not there and could not be installed; the text says what to do about it."""


def first_of(advice: str, *ways: Callable[[], Found]) -> Found:
    """What the first way finds that finds anything. Raises NotInstalled with the advice and what was tried."""
    tried: list[str] = []
    for way in ways:
        try:
            return way()
        except NotInstalled as error:
            tried.append(f"  * {error}")
    raise NotInstalled("\n".join([advice, "What was tried:", *tried]))


def can_install() -> bool:
    """Whether this is Debian or one of its kin, and we are root."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(*packages: str) -> None:
    """Install packages without questions and without starting their services. Minutes, on a slow network.

    Raises NotInstalled.
    """
    names = " ".join(packages)
    print(f"\ninstalling {names} with apt-get …", flush=True)
    with one_at_a_time("apt"), _no_services():
        command = ("apt-get", "-q", "install", "--yes", "--no-install-recommends", *packages)
        try:
            run(*command)
        except NotInstalled:  # apt has no lists yet, or they are so old that the mirror no longer has what they name
            run("apt-get", "-q", "update")
            run(*command)


def run(*command: str) -> None:
    """Run a command that installs something, without questions. Raises NotInstalled with its last words."""
    done = subprocess.run(
        command,
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        raise NotInstalled(f"`{' '.join(command)}` failed:\n{done.stdout[-2_000:]}")


@contextlib.contextmanager
def one_at_a_time(what: str) -> Iterator[None]:
    """Alone on this machine while installing this: two test processes at it would undo each other's work."""
    with open(Path(tempfile.gettempdir()) / f"palermo-tests-{what}-{os.getuid()}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _no_services() -> Iterator[None]:
    """Have the packages' scripts told that no service may be started (Debian policy, 9.3.3.2)."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()
