"""The process environment: the settings in it, and variables set by the program that started this process."""

import os
import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from palermo.settings.table import SETTINGS

#: The setting that each variable sets.
VARIABLES = {f"PALERMO_{name.upper()}": name for name in SETTINGS}

#: Kubernetes describes a namespace's Services to its pods in variables such as PALERMO_WEB_SERVICE_HOST. For a Service
#: named palermo-web, PALERMO_WEB_PORT=tcp://10.0.0.7:80 is one of them, and not the `web_port` setting.
_SERVICE_ADDRESS = ("tcp://", "udp://", "sctp://")
_OF_SERVICE = r"PALERMO\w*_(SERVICE_(HOST|PORT)|PORT_\d+_)"


def from_environment() -> Iterator[tuple[str, str, Any]]:
    """Yield the settings in the environment: source, name, value. Empty and blank variables are ignored."""
    for variable, name in VARIABLES.items():
        value = os.environ.get(variable, "").strip()
        if value and not _is_service(variable, value):
            yield variable, name, value


def unknown_variables() -> list[str]:
    """Return variables that look like settings but aren't."""
    others = {START_PIPE, _SUPERVISOR, *VARIABLES}
    return sorted(
        variable
        for variable, value in os.environ.items()
        if variable.startswith("PALERMO_") and variable not in others and not _is_service(variable, value)
    )


def _is_service(variable: str, value: str) -> bool:
    """Whether Kubernetes set the variable for a Service."""
    if variable.endswith("_PORT") and value.startswith(_SERVICE_ADDRESS):
        return True
    return re.match(_OF_SERVICE, variable) is not None


#: The variable with the pipe's descriptor, through which a worker reports to start_worker whether it could start.
START_PIPE = "PALERMO_STARTER"


def take_start_pipe() -> int | None:
    """Return that descriptor, and remove the variable so that jobs and child processes don't see it."""
    text = os.environ.pop(START_PIPE, "")
    return int(text) if text.isdecimal() else None


def keep_start_pipe(descriptor: int) -> None:
    """Duplicate that descriptor for the program that this process executes next."""
    copy = os.dup(descriptor)
    os.set_inheritable(copy, True)
    os.environ[START_PIPE] = str(copy)


#: The variable with a supervisor's pid, set for its workers.
_SUPERVISOR = "PALERMO_SUPERVISOR"


def is_supervised() -> bool:
    """Whether a supervisor started this process. Processes started by jobs of such a worker aren't supervised."""
    return os.environ.get(_SUPERVISOR) == str(os.getppid())


def supervised_environment(start_pipe: int) -> dict[str, str]:
    """Return the environment for a worker that this process supervises."""
    return {**os.environ, _SUPERVISOR: str(os.getpid()), START_PIPE: str(start_pipe)}


class ServiceManager(Struct, frozen=True, kw_only=True):
    """The service manager, such as systemd, that started this process and expects notifications."""

    #: The address of its socket: a path, or a name that begins with @.
    address: str
    #: Seconds without a notification after which it considers the process dead; None if it doesn't watch.
    watchdog: float | None = None


def service_manager(pid: int | None = None) -> ServiceManager | None:
    """Return the service manager that NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID describe, or None."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return None
    microseconds, watched = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    ours = not watched or watched == str(os.getpid() if pid is None else pid)
    seconds = int(microseconds) / 1_000_000 if ours and microseconds.isdecimal() else 0.0
    return ServiceManager(address=address, watchdog=seconds or None)


def colours_refused() -> bool:
    """Whether NO_COLOR disables colours (no-color.org)."""
    return bool(os.environ.get("NO_COLOR"))


def flask_app() -> str:
    """Return the application in FLASK_APP, or ""."""
    return os.environ.get("FLASK_APP", "")
