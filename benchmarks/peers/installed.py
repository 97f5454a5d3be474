"""Finds the systems that are installed here, and their versions."""

import json
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path

from benchmarks.compare import machine
from benchmarks.peers.systems.system import System

_ASK = """
import json, sys
from importlib import metadata
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def versions(python: str, distributions: Iterable[str]) -> dict[str, str]:
    """Those of the distributions that this Python has; none if there is no such Python."""
    if not Path(python).exists():
        return {}
    done = subprocess.run([python, "-c", _ASK, *distributions], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def described(system: System, found: dict[str, str]) -> str:
    """The system and what it stands on, with their versions."""
    return f"{system.name}: " + ", ".join(f"{name} {found[name]}" for name in system.distributions if name in found)


def here(rabbitmq: str) -> str:
    """The environment that all systems share: the versions of RabbitMQ and Python, and the machine."""
    return f"RabbitMQ {rabbitmq}, Python {platform.python_version()}; {machine()}"
