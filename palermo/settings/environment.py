"""The environment of this process: the settings in it, and what the programs that started it say there."""

import os
import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from palermo.settings.table import SETTINGS

#: The variable of each setting.
VARIABLES = {f"PALERMO_{name.upper()}": name for name in SETTINGS}

#: Kubernetes tells each pod of a namespace where its Services are. Of a Service named palermo-web it writes
#: PALERMO_WEB_PORT=tcp://10.0.0.7:80, which is not the setting web_port, and others such as PALERMO_WEB_SERVICE_HOST.
_SERVICE_ADDRESS = ("tcp://", "udp://", "sctp://")
_OF_SERVICE = r"PALERMO\w*_(SERVICE_(HOST|PORT)|PORT_\d+_)"


def from_environment() -> Iterator[tuple[str, str, Any]]:
    """The settings in the environment: source, name, value. An empty or blank variable counts as not set."""
    for variable, name in VARIABLES.items():
        value = os.environ.get(variable, "").strip()
        if value and not _is_service(variable, value):
            yield variable, name, value


def unknown_variables() -> list[str]:
    """The variables that are named as settings are, and mean none of them."""
    others = {START_PIPE, _SUPERVISOR, *VARIABLES}
    return sorted(
        variable
        for variable, value in os.environ.items()
        if variable.startswith("PALERMO_") and variable not in others and not _is_service(variable, value)
    )


def _is_service(variable: str, value: str) -> bool:
    """Whether Kubernetes wrote the variable for a Service."""
    if variable.endswith("_PORT") and value.startswith(_SERVICE_ADDRESS):
        return True
    return re.match(_OF_SERVICE, variable) is not None


#: The variable in which start_worker gives its worker the descriptor of the pipe to tell how the start went.
START_PIPE = "PALERMO_STARTER"


def take_start_pipe() -> int | None:
    """Take that descriptor out of the environment: no job and no child process sees it."""
    text = os.environ.pop(START_PIPE, "")
    return int(text) if text.isdecimal() else None


def keep_start_pipe(descriptor: int) -> None:
    """Leave a copy of that descriptor to the program that this process executes next."""
    copy = os.dup(descriptor)
    os.set_inheritable(copy, True)
    os.environ[START_PIPE] = str(copy)


#: The variable in which a supervisor gives its workers its pid.
_SUPERVISOR = "PALERMO_SUPERVISOR"


def is_supervised() -> bool:
    """Whether a supervisor started this process. A process that a job of such a worker starts is not supervised."""
    return os.environ.get(_SUPERVISOR) == str(os.getppid())


def supervised_environment(start_pipe: int) -> dict[str, str]:
    """The environment of a worker that this process supervises."""
    return {**os.environ, _SUPERVISOR: str(os.getpid()), START_PIPE: str(start_pipe)}


class ServiceManager(Struct, frozen=True, kw_only=True):
    """The service manager that started this process and wants to hear from it, as systemd does."""

    #: Its socket: a path, or a name that begins with @.
    address: str
    #: Seconds of silence after which it takes the process for dead; None if it does not watch.
    watchdog: float | None = None


def service_manager(pid: int | None = None) -> ServiceManager | None:
    """The service manager that NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID name; None if there is none."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return None
    microseconds, watched = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    ours = not watched or watched == str(os.getpid() if pid is None else pid)
    seconds = int(microseconds) / 1_000_000 if ours and microseconds.isdecimal() else 0.0
    return ServiceManager(address=address, watchdog=seconds or None)


def colours_refused() -> bool:
    """Whether NO_COLOR asks for text without colours (no-color.org)."""
    return bool(os.environ.get("NO_COLOR"))


def flask_app() -> str:
    """The application that FLASK_APP names, as Flask's own commands find it; "" for none."""
    return os.environ.get("FLASK_APP", "")
