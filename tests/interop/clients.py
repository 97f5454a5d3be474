"""AMQP clients of other languages, as people use them: installed from their own registries, spoken to as processes."""

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.debian import NotInstalled, can_install, install, one_at_a_time

_HERE = Path(__file__).parent

#: Where npm installs, once for each environment and lock file; it goes with the environment.
_CACHE = Path(sys.prefix) / "palermo-interop"

_OLDEST_NODE = 18


@dataclass(frozen=True, slots=True)
class ForeignClient:
    """A program in another language, which publishes jobs and reads messages. See its first lines."""

    language: str
    command: tuple[str, ...]

    def publish(self, url: str, *, exchange: str, queue: str) -> None:
        """Make the exchange, the queue and the binding, and enqueue five jobs that run and one that fails."""
        self._run("publish", url, exchange, queue)

    def read(self, url: str, *, queue: str) -> list[dict[str, Any]]:
        """Take all messages out of a queue: `headers`, `id`, `content_type`, `delivery_mode` and `body` of each."""
        messages: list[dict[str, Any]] = json.loads(self._run("read", url, queue))
        return messages

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self.command, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=100,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@cache
def find_amqplib() -> ForeignClient:
    """Node's amqplib, installed by npm the first time. Raises NotInstalled."""
    if not (shutil.which("node") and shutil.which("npm")):
        if not can_install():
            raise NotInstalled(f"no Node.js for the tests: install Node.js {_OLDEST_NODE} or later with npm.")
        install("nodejs", "npm")
    version = _output("node", "--version").strip()
    if int(version.removeprefix("v").partition(".")[0]) < _OLDEST_NODE:
        raise NotInstalled(f"Node.js here is {version}: the tests need {_OLDEST_NODE} or later. Install a newer one.")
    source = _HERE / "amqplib"
    folder = _CACHE / hashlib.sha256((source / "package-lock.json").read_bytes()).hexdigest()[:12]
    with one_at_a_time("npm"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("client.js", "package.json", "package-lock.json"):
            shutil.copy(source / name, folder)
        if not (folder / "node_modules" / ".package-lock.json").exists():
            _output("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=folder)
    return ForeignClient("node", ("node", str(folder / "client.js")))


@cache
def find_bunny() -> ForeignClient:
    """Ruby's bunny, from its gem or Debian's package. Raises NotInstalled."""
    if not _has_bunny():
        if not can_install():
            raise NotInstalled("no bunny for the tests: install Ruby, and then `gem install bunny`.")
        install("ruby-bunny")
        if not _has_bunny():
            raise NotInstalled("Ruby on the PATH is not Debian's and has no bunny: `gem install bunny`.")
    return ForeignClient("ruby", ("ruby", str(_HERE / "bunny" / "client.rb")))


def _has_bunny() -> bool:
    if not shutil.which("ruby"):
        return False
    asked = subprocess.run(
        ["ruby", "-e", 'require "bunny"'], stdin=subprocess.DEVNULL, capture_output=True, timeout=100, check=False
    )
    return asked.returncode == 0


def _output(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotInstalled(f"`{' '.join(command)}` failed:\n{done.stdout[-1_000:]}{done.stderr[-1_000:]}")
    return done.stdout
