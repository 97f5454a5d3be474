"""AMQP clients of other languages, as people use them: installed from their own registries, spoken to as processes.

Node and Ruby are installed if they are missing. PHP and Go are used if they are there, and never installed.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.debian import NotInstalled, can_install, install, one_at_a_time

_HERE = Path(__file__).parent

#: The programs that docs/guides/languages.md explains.
EXAMPLES = _HERE.parents[1] / "examples" / "languages"

#: Where npm installs and Go compiles, once for each environment and version of the files; it goes with the environment.
_CACHE = Path(sys.prefix) / "palermo-interop"

#: Where Debian's packages of Go libraries lie.
_GOPATH = Path("/usr/share/gocode")

_OLDEST_NODE = 18


@dataclass(frozen=True, slots=True)
class ForeignClient:
    """A program in another language, which publishes jobs and reads messages. See its first lines."""

    language: str
    command: tuple[str, ...]
    #: The program of this language in EXAMPLES.
    example: tuple[str, ...]

    def publish(self, url: str, *, exchange: str, queue: str) -> None:
        """Make the exchange, the queue and the binding, and enqueue five jobs that run and one that fails."""
        self._run("publish", url, exchange, queue)

    def read(self, url: str, *, queue: str) -> list[dict[str, Any]]:
        """Take all messages out of a queue: `headers`, `id`, `content_type`, `delivery_mode` and `body` of each."""
        messages: list[dict[str, Any]] = json.loads(self._run("read", url, queue))
        return messages

    def enqueue_example(self, url: str, *, exchange: str) -> None:
        """Enqueue a job as the guide does."""
        self._run("enqueue", program=self.example, PALERMO_URL=url, PALERMO_EXCHANGE=exchange)

    @contextmanager
    def working(self, url: str, *, exchange: str, output: Path) -> Iterator[None]:
        """The worker of the guide, which writes to a file."""
        environment = os.environ | {"PALERMO_URL": url, "PALERMO_EXCHANGE": exchange}
        with output.open("w") as file:
            worker = subprocess.Popen(
                [*self.example, "work"], env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        try:
            yield
        finally:
            worker.kill()
            worker.wait()

    def _run(self, *arguments: str, program: tuple[str, ...] | None = None, **variables: str) -> str:
        done = subprocess.run(
            [*(program or self.command), *arguments],
            env=os.environ | variables,
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
        shutil.copy(EXAMPLES / "shop.js", folder)
        if not (folder / "node_modules" / ".package-lock.json").exists():
            _output("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=folder)
    return ForeignClient("node", ("node", str(folder / "client.js")), ("node", str(folder / "shop.js")))


@cache
def find_bunny() -> ForeignClient:
    """Ruby's bunny, from its gem or Debian's package. Raises NotInstalled."""
    asked = ("ruby", "-e", 'require "bunny"')
    if not _succeeds(*asked):
        if not can_install():
            raise NotInstalled("no bunny for the tests: install Ruby, and then `gem install bunny`.")
        install("ruby-bunny")
        if not _succeeds(*asked):
            raise NotInstalled("Ruby on the PATH is not Debian's and has no bunny: `gem install bunny`.")
    return ForeignClient("ruby", ("ruby", str(_HERE / "bunny" / "client.rb")), ("ruby", str(EXAMPLES / "shop.rb")))


@cache
def find_php_amqplib() -> ForeignClient:
    """PHP's php-amqplib, if it is installed. Raises NotInstalled."""
    if not _succeeds("php", "-r", 'require "PhpAmqpLib/autoload.php";'):
        raise NotInstalled("no PHP with php-amqplib here, and tests do not install it: apt-get install php-amqplib.")
    client = _HERE / "php_amqplib" / "client.php"
    return ForeignClient("php", ("php", str(client)), ("php", str(EXAMPLES / "shop.php")))


@cache
def find_amqp091_go() -> ForeignClient:
    """Go's amqp091-go, if it is installed; it is compiled the first time. Raises NotInstalled."""
    if not (shutil.which("go") and (_GOPATH / "src/github.com/rabbitmq/amqp091-go").is_dir()):
        packages = "golang-go golang-github-rabbitmq-amqp091-go-dev"
        raise NotInstalled(f"no Go with amqp091-go here, and tests do not install it: apt-get install {packages}.")
    sources = (_HERE / "amqp091_go" / "client.go", EXAMPLES / "shop.go")
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    folder = _CACHE / f"go-{digest}"
    environment = os.environ | {"GO111MODULE": "off", "GOPATH": str(_GOPATH), "GOCACHE": str(_CACHE / "go-cache")}
    with one_at_a_time("go"):
        for source in sources:
            if not (folder / source.stem).exists():
                _output("go", "build", "-o", str(folder / source.stem), str(source), env=environment)
    return ForeignClient("go", (str(folder / "client"),), (str(folder / "shop"),))


def _succeeds(*command: str) -> bool:
    """Whether there is such a program, and it ends well."""
    if not shutil.which(command[0]):
        return False
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=100).returncode == 0


def _output(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NotInstalled(f"`{' '.join(command)}` failed:\n{done.stdout[-1_000:]}{done.stderr[-1_000:]}")
    return done.stdout
