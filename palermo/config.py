"""Settings: where they come from, what they may be, and what they say.

From weakest to strongest: the defaults below; a file; `PALERMO_*` variables; what the
program or a flag gives. The file is the first one found going up from the current
directory: `palermo.toml` with the settings at its top, or a `pyproject.toml` that has a
table [tool.palermo]; where a directory has both, palermo.toml. No file above it is read.
This is the only place that reads the environment.
"""

import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from palermo.core.address import DEFAULT_URL, Address, parse_url
from palermo.core.topology import DEFAULT_EXCHANGE, DEFAULT_QUEUE, check_exchange_name, check_job_queue
from palermo.errors import QueueNameInvalid, SettingInvalid, UrlInvalid
from palermo.registry import nearest

if TYPE_CHECKING:
    from palermo.broker import Session
    from palermo.serialization import Serializers

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?", re.ASCII)
_UNITS = (86_400.0, 3_600.0, 60.0, 1.0)
_TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


@dataclass(frozen=True, kw_only=True, repr=False)
class Settings:
    """What a program was told about its broker and its jobs; every value is checked when it is made.

    Raises SettingInvalid naming the setting. `repr()` shows no password and no key.
    """

    #: The broker. A relative SQLite path in a settings file is relative to that file.
    url: str = DEFAULT_URL
    #: Keeps several systems on one broker apart; a name without dots.
    exchange: str = DEFAULT_EXCHANGE
    #: Where a job waits that names no queue.
    default_queue: str = DEFAULT_QUEUE
    #: How arguments are serialized, by name: "json", "msgpack", "pickle" or one that is installed.
    serializer: str = "json"
    #: "gzip" or "zstd"; "" or "none" for none.
    compression: str = ""
    #: Whether jobs are signed with the first of the signing keys.
    sign: bool = False
    #: Keys that signatures are verified with, and made with the first. In a variable: with commas
    #: between them, or a JSON array; so too the imports.
    signing_keys: tuple[str, ...] = ()
    #: Seconds that enqueuing one job may take, with everything that goes wrong on the way.
    publish_timeout: float = 5.0
    #: Modules that hold jobs, for workers and commands that name none.
    imports: tuple[str, ...] = ()
    #: Whether the failed jobs of every queue lie apart, in `failed:<queue>`, instead of all in `failed`.
    failed_per_queue: bool = False
    #: Seconds after which a failed job is dropped; None ("none" in a file or variable) to keep it.
    failed_max_age: float | None = None
    #: How many failed jobs are kept, the newest; None for all.
    failed_max_count: int | None = None
    #: How many workers may die while they run a job before it fails as WorkerDied; None for any number.
    max_deaths: int | None = 3

    def __post_init__(self) -> None:
        for name, read in _READERS.items():
            object.__setattr__(self, name, _read(name, read, getattr(self, name), source=""))
        if self.sign and not self.signing_keys:
            raise SettingInvalid("sign is on, and signing_keys holds no key to sign with. Set PALERMO_SIGNING_KEYS.")

    @classmethod
    def load(cls, **overrides: Any) -> "Settings":
        """The settings of this process: file, environment, and above all what is given here; None counts as not given.

        Raises SettingInvalid naming the setting, its value and where it came from.
        """
        found: dict[str, Any] = {}
        given = (("", name, value) for name, value in overrides.items())
        for source, name, value in (*_from_file(), *_from_environment(), *given):
            if name not in _READERS:
                where = f" in {source}" if source else ""
                known = ", ".join(_READERS)
                raise SettingInvalid(
                    f"there is no setting {name!r}{where}.{nearest(name, _READERS)} The settings are {known}."
                )
            if value is not None:
                found[name] = _read(name, _READERS[name], value, source=source)
        return cls(**found)

    @property
    def address(self) -> Address:
        """The broker's URL, read; its text shows no password."""
        return parse_url(self.url)

    def session(self, name: str) -> "Session":
        """How to open a broker with these settings; `name` is what the session is for."""
        from palermo.broker import Session

        return Session(address=self.address, exchange=self.exchange, timeout=self.publish_timeout, name=name)

    def serializers(self) -> "Serializers":
        """A new registry of all serializers that are installed, with the signing keys."""
        from palermo.serialization import Serializers

        return Serializers.default(signing_keys=self.signing_keys)

    def __repr__(self) -> str:
        shown = {each.name: getattr(self, each.name) for each in fields(self)}
        shown["url"] = str(self.address)
        shown["signing_keys"] = ("***",) * len(self.signing_keys)
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def environment(settings: Settings) -> dict[str, str]:
    """This process's environment with the settings in it, for a child that loads them from there."""
    given: dict[str, str] = {}
    for name in _READERS:
        match getattr(settings, name):
            case None | "":
                text = "none"
            case tuple() as values:
                text = json.dumps(values)
            case value:
                text = str(value)
        given[f"PALERMO_{name.upper()}"] = text
    return {**os.environ, **given}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a setting that is not a default comes from."""

    setting: str
    #: A file's path, a variable's name, or "given" for a flag or the program.
    origin: str
    #: Its value, without secrets.
    shown: str


def sources(**overrides: Any) -> list[Source]:
    """The settings that Settings.load(**overrides) would not take from the defaults, each by what decides it."""
    settings = Settings.load(**overrides)
    given = (("given", name, value) for name, value in overrides.items() if value is not None)
    origins = {name: origin for origin, name, _ in (*_from_file(), *_from_environment(), *given)}
    shown = {name: str(getattr(settings, name)) for name in origins}
    shown |= {"url": str(settings.address), "signing_keys": f"{len(settings.signing_keys)} not shown"}
    return [Source(setting=name, origin=origin, shown=shown[name]) for name, origin in origins.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceManager:
    """Who started this process and wants to hear from it, as systemd does."""

    #: Its socket: a path, or a name that begins with @.
    address: str
    #: Seconds after which it takes a silent process for dead; None where it does not watch.
    watchdog: float | None = None


def service_manager(pid: int | None = None) -> ServiceManager | None:
    """What NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID say to this process; None if nobody listens."""
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


def parse_duration(text: str) -> float:
    """Seconds in `90`, `90s`, `5m`, `1h30m`, `2d`. Raises ValueError for anything else."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        raise ValueError(f"{text!r} is no duration")
    return sum(float(number) * unit for number, unit in zip(found.groups(), _UNITS, strict=True) if number)


class _Wrong(Exception):
    """What a value must be instead."""


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Wrong("text")
    return value


def _named(value: Any) -> str:
    if not _text(value).strip():
        raise _Wrong("a name")
    return str(value).strip()


def _url(value: Any) -> str:
    parse_url(_text(value))
    return str(value)


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _TRUTH:
        return _TRUTH[value.strip().lower()]
    raise _Wrong("true or false")


def _compression(value: Any) -> str:
    name = _text(value).strip()
    return "" if name == "none" else name


def _list(value: Any) -> tuple[str, ...]:
    parts = value
    if isinstance(value, str):
        try:
            parts = json.loads(value) if value.lstrip().startswith("[") else value.split(",")
        except ValueError:
            parts = None
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise _Wrong("a list of texts")
    return tuple(part.strip() for part in parts if part.strip())


def _seconds(value: Any) -> float:
    try:
        seconds = parse_duration(value) if isinstance(value, str) else value
    except ValueError:
        seconds = None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise _Wrong("a duration above 0: seconds, or such as 5m, 1h30m, 30d")
    return float(seconds)


def _count(value: Any) -> int:
    number = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise _Wrong("a whole number, 0 or more")
    return number


def _some(value: Any) -> int:
    if (number := _count(value)) < 1:
        raise _Wrong("a whole number, 1 or more, or none")
    return number


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None or value == "none" else read(value)


#: Every setting, and what reads a value for it: from TOML, from a variable's text, or from Python.
_READERS: Mapping[str, Callable[[Any], Any]] = {
    "url": _url,
    "exchange": check_exchange_name,
    "default_queue": check_job_queue,
    "serializer": _named,
    "compression": _compression,
    "sign": _truth,
    "signing_keys": _list,
    "publish_timeout": _seconds,
    "imports": _list,
    "failed_per_queue": _truth,
    "failed_max_age": _optional(_seconds),
    "failed_max_count": _optional(_count),
    "max_deaths": _optional(_some),
}


def _read(name: str, read: Callable[[Any], Any], value: Any, *, source: str) -> Any:
    """The value as its setting has it. Raises SettingInvalid, without the value where it may hold a secret."""
    where = f" (from {source})" if source else ""
    try:
        return read(value)
    except _Wrong as wrong:
        shown = "a value that is not shown" if name in ("url", "signing_keys") else repr(value)
        raise SettingInvalid(f"setting {name} is {shown}{where} and must be {wrong}.") from None
    except UrlInvalid as error:
        raise UrlInvalid(f"{error}{f' It was read from {source}.' if source else ''}") from None
    except (SettingInvalid, QueueNameInvalid) as error:
        raise SettingInvalid(f"setting {name}{where}: {error}") from None


def _from_environment() -> Iterator[tuple[str, str, Any]]:
    """Where from, which setting, and its value. An empty variable counts as not set: so a container leaves one out."""
    for name in _READERS:
        variable = f"PALERMO_{name.upper()}"
        if os.environ.get(variable):
            yield variable, name, os.environ[variable]


def _from_file() -> Iterator[tuple[str, str, Any]]:
    """The same from the first file found, going up from the current directory."""
    try:
        start = Path.cwd()
    except OSError:  # the current directory has been removed
        return
    for directory in (start, *start.parents):
        for path, inside in ((directory / "palermo.toml", ()), (directory / "pyproject.toml", ("tool", "palermo"))):
            table = _table(path, inside)
            if table is not None:
                yield from ((str(path), name, _anchored(name, value, directory)) for name, value in table.items())
                return


def _table(path: Path, inside: Iterable[str]) -> Mapping[str, Any] | None:
    """The table of settings in a file; None if the file is not there or has none."""
    if not os.path.isfile(path):  # False where we may not even look, unlike Path.is_file
        return None
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingInvalid(f"settings file {path} cannot be read: {error.strerror}.") from None
    try:
        found: Any = tomllib.loads(data.decode())
    except ValueError as error:  # not UTF-8, or not TOML
        if inside and b"tool.palermo" not in data:
            return None  # somebody else's broken file is somebody else's to report
        raise SettingInvalid(f"settings file {path} is not TOML: {error}. Mend it.") from None
    for name in inside:
        found = found.get(name) if isinstance(found, Mapping) else None
        if found is None:
            return None
    if not isinstance(found, Mapping):
        raise SettingInvalid(f"tool.palermo in {path} is not a table. Write [tool.palermo].")
    return found


def _anchored(name: str, value: Any, directory: Path) -> Any:
    """A setting as the file means it: its SQLite path counts from the file, wherever below it a program starts."""
    if name == "url" and isinstance(value, str) and value.startswith("sqlite:///"):
        path = value.removeprefix("sqlite:///")
        if path and not path.startswith(("/", ":memory:")):
            return f"sqlite:///{quote(directory.as_posix())}/{path}"
    return value
