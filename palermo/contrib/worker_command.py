"""Starts a worker from a framework's command line: `manage.py palermo_worker`, `flask palermo worker`.

The framework's process has imported the whole application, and may have started threads. A worker's parent must do
neither, because it runs no user code and forks. Therefore `palermo worker` replaces the process, keeping its pid. The
settings are passed in environment variables, which process listings don't show.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from palermo.settings.settings import Settings, environment

NOTHING: Mapping[str, str] = {}


def worker_arguments(arguments: Sequence[str]) -> list[str] | None:
    """Return the worker's arguments if a `palermo` command line runs a worker and doesn't just print its help.

    In `--url X worker -c 2`, the option before the command is included.
    """
    place = 0
    while place < len(arguments) and arguments[place].startswith("-"):
        place += 2 if arguments[place] in ("--url", "--exchange") else 1
    if list(arguments[place : place + 1]) != ["worker"] or {"--help", "-h"} & set(arguments):
        return None
    return [*arguments[:place], *arguments[place + 1 :]]


def become_worker(
    settings: Settings,
    modules: Iterable[str],
    arguments: Sequence[str],
    *,
    folders: Iterable[str] = (),
    variables: Mapping[str, str] = NOTHING,
) -> NoReturn:
    """Replace this process with a worker for these modules, with arguments of `palermo worker`.

    `folders` are added to PYTHONPATH, and `variables` to the environment.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, _command(modules, arguments), {**_environment(settings, folders), **variables})


def run_worker_process(
    settings: Settings, modules: Iterable[str], arguments: Sequence[str], *, folders: Iterable[str] = ()
) -> int:
    """Run such a worker as a separate process until it ends, and return its exit code."""
    command = _command(modules, arguments)
    return subprocess.run(command, env=_environment(settings, folders), check=False).returncode


def _command(modules: Iterable[str], arguments: Sequence[str]) -> list[str]:
    flags = [f"-W{option}" for option in sys.warnoptions]
    flags += [f"-X{name}" if value is True else f"-X{name}={value}" for name, value in sys._xoptions.items()]
    return [sys.executable, *flags, "-m", "palermo", "worker", *dict.fromkeys(modules), *arguments]


def _environment(settings: Settings, folders: Iterable[str]) -> dict[str, str]:
    given = environment(settings)
    path = [*folders, *given.get("PYTHONPATH", "").split(os.pathsep)]
    return {**given, "PYTHONPATH": os.pathsep.join(dict.fromkeys(one for one in path if one))}
