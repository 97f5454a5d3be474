"""The settings: where they come from, how they are checked, and what they mean.

From weakest to strongest: the defaults in palermo.settings.table; a file; the configuration of a framework
(`declare_settings`); `PALERMO_*` variables; arguments of the program, or flags. The file is the first one found
going up from the current directory: `palermo.toml` with the settings at its top, or a `pyproject.toml` that has a table
[tool.palermo]; if a directory has both, palermo.toml. No file above it is read.
Only this folder reads the environment.
"""

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import force_setattr

from palermo.core.address import Address, parse_url
from palermo.core.text import nearest
from palermo.errors import QueueNameInvalid, SettingInvalid, UrlInvalid
from palermo.settings.environment import from_environment
from palermo.settings.readers import WrongValue
from palermo.settings.table import SETTINGS, SettingArgumentsAndUrl, SettingValues

if TYPE_CHECKING:
    from palermo.contract.broker import SessionParameters
    from palermo.contract.serialization import Serializers

#: Every form in which the table [tool], or [tool.palermo], may begin in a pyproject.toml.
_MENTIONED = re.compile(rb"""tool["']?\s*(\]|=|\.\s*["']?palermo)""")


class Settings(SettingValues, frozen=True, kw_only=True):
    """The settings of one program; every value is checked when the object is made.

    Raises SettingInvalid naming the setting. `repr()` shows no password and no key.
    """

    def __post_init__(self) -> None:
        for name in SETTINGS:
            force_setattr(self, name, _read(name, getattr(self, name), source=""))
        if self.sign and not self.signing_keys:
            raise SettingInvalid("sign is on, but signing_keys has no key to sign with. Set PALERMO_SIGNING_KEYS.")

    @classmethod
    def load(cls, **overrides: Unpack[SettingArgumentsAndUrl]) -> "Settings":
        """The settings of this process, from file, program, environment and, strongest, arguments; None is not given.

        Raises SettingInvalid naming the setting, its value and where it came from.
        """
        found: dict[str, Any] = {}
        for source, name, value in _sources(overrides):
            if name not in SETTINGS:
                where = f" in {source}" if source else ""
                if name == "tool" and source.endswith("palermo.toml"):
                    raise SettingInvalid(f"{source} has a table [tool]. Move the settings to its top level.")
                known = ", ".join(SETTINGS)
                raise SettingInvalid(
                    f"there is no setting {name!r}{where}.{nearest(name, SETTINGS)} The settings are {known}."
                )
            if value is not None:
                found[name] = _read(name, value, source=source)
        return cls(**found)

    @property
    def address(self) -> Address:
        """The broker's URL, parsed; as text it shows no password."""
        return parse_url(self.url)

    def session(self, name: str, *, warns: bool = True, creates: bool = True) -> "SessionParameters":
        """The parameters of a broker session with these settings; `name` is what the session is for."""
        from palermo.contract.broker import SessionParameters

        return SessionParameters(
            address=self.address,
            exchange=self.exchange,
            queue_type=self.queue_type,
            tenant_order=self.tenant_order,
            failed_per_queue=self.failed_per_queue,
            timeout=self.publish_timeout,
            journal_bytes=self.journal_max_size,
            journal_age=self.journal_max_age,
            events_prefix=self.events_prefix,
            keep_events=self.events_unsubscribed == "keep",
            events_bytes=self.events_max_size,
            events_age=self.events_max_age,
            name=name,
            warns=warns,
            creates=creates,
        )

    @property
    def prefix(self) -> str:
        """The prefix of the names of exchanges and queues that carry events."""
        return self.events_prefix or self.exchange

    def serializers(self) -> "Serializers":
        """The process's registry of serializers, with the signing keys of these settings."""
        from palermo.contract.serialization import Serializers

        return Serializers.of_process(signing_keys=self.signing_keys)

    @property
    def has_sign_in(self) -> bool:
        """Whether users sign in to the web pages: by a file of users or an OpenID provider."""
        return bool(self.web_users or self.web_oidc_issuer)

    def __hash__(self) -> int:
        return hash((self.url, self.exchange))  # `schedule`, a dict, has no hash

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        shown["url"] = str(self.address)
        for name in _secrets():
            shown[name] = "***" if shown[name] else ""
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def environment(settings: Settings) -> dict[str, str]:
    """This process's environment with the settings in it, for a child process that loads them from there."""
    given: dict[str, str] = {}
    for name in SETTINGS:
        match getattr(settings, name):
            case None | "":
                text = "none"
            case tuple() | dict() as values:
                text = json.dumps(values)
            case value:
                text = str(value)
        given[f"PALERMO_{name.upper()}"] = text
    return {**os.environ, **given}


class SettingOrigin(Struct, frozen=True, kw_only=True):
    """The origin of a setting that is not a default."""

    setting: str
    #: A file's path, a variable's name, or "given" for a flag or the program.
    origin: str
    #: Its value, without secrets.
    shown: str


def setting_origins(**overrides: Unpack[SettingArgumentsAndUrl]) -> list[SettingOrigin]:
    """The settings that Settings.load(**overrides) wouldn't take from the defaults, each with its source."""
    settings = Settings.load(**overrides)
    origins = {name: origin or "given" for origin, name, value in _sources(overrides) if value is not None}
    shown = {name: str(getattr(settings, name)) for name in origins}
    shown |= {"url": str(settings.address), **dict.fromkeys(_secrets(), "not shown")}
    return [SettingOrigin(setting=name, origin=origin, shown=shown[name]) for name, origin in origins.items()]


def _sources(overrides: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """All settings that are given, the strongest last: source ("" for `overrides`), name, value."""
    yield from (*from_file(), *from_program(), *from_environment())
    yield from (("", name, value) for name, value in overrides.items())


def _secrets() -> list[str]:
    return [name for name, row in SETTINGS.items() if row.secret]


def _read(name: str, value: Any, *, source: str) -> Any:
    """Read a setting's value. Raises SettingInvalid, without the value if it may hold a secret."""
    where = f" (from {source})" if source else ""
    try:
        # A line of a .env file or a secret in a file often ends in a line break.
        return SETTINGS[name].read(value.strip() if isinstance(value, str) else value)
    except WrongValue as wrong:
        row = SETTINGS[name]
        shown = "a value that is not shown" if row.secret or row.hidden else repr(value)
        raise SettingInvalid(f"setting {name} is {shown}{where}; it must be {wrong}.") from None
    except UrlInvalid as error:
        raise UrlInvalid(f"{error}{f' It was read from {source}.' if source else ''}") from None
    except (SettingInvalid, QueueNameInvalid) as error:
        raise SettingInvalid(f"setting {name}{where}: {error}") from None


# -- the settings file


def from_file() -> Iterator[tuple[str, str, Any]]:
    """The settings in the settings file: source, name, value."""
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


def make_imports_importable() -> None:
    """Add the directory of the settings file to Python's path if the file names modules, behind all that is there.

    So these modules are found from wherever below that directory the program starts.
    """
    for source, name, _ in from_file():
        directory = os.path.dirname(source)
        if name == "imports" and directory not in sys.path:
            sys.path.append(directory)


def _table(path: Path, inside: Iterable[str]) -> Mapping[str, Any] | None:
    """The table of settings in a file; None if the file is not there or has none."""
    if not os.path.isfile(path):  # returns False where we may not even look, unlike Path.is_file
        return None
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingInvalid(f"settings file {path} cannot be read: {error.strerror}.") from None
    if inside and not _MENTIONED.search(data):
        return None
    import tomllib  # only for those who have settings in a file: it takes longer to import than all else here

    try:
        found: Any = tomllib.loads(data.decode())
    except ValueError as error:  # not UTF-8, or not TOML
        if inside and b"tool.palermo" not in data:
            return None  # another tool's broken file is for that tool to report
        raise SettingInvalid(f"settings file {path} is not valid TOML: {error}.") from None
    for name in inside:
        found = found.get(name) if isinstance(found, Mapping) else None
        if found is None:
            return None
    if not isinstance(found, Mapping):
        raise SettingInvalid(f"tool.palermo in {path} is not a table. Write [tool.palermo].")
    return found


def _anchored(name: str, value: Any, directory: Path) -> Any:
    """A setting from a file: a relative path in it counts from the file, wherever below it the program starts."""
    if not isinstance(value, str):
        return value
    value = value.strip()
    if name == "url" and value.startswith("sqlite:///"):
        path = value.removeprefix("sqlite:///")
        if path and not path.startswith(("/", ":memory:")):
            return f"sqlite:///{quote(directory.as_posix())}/{path}"
    if name == "web_users" and value not in ("", "none"):
        return str(directory / value)
    return value


# -- the settings that a program's own configuration holds, such as `PALERMO` in the settings of a Django project

#: By source: the name that errors give it, and its settings.
_declared: dict[str, dict[str, Any]] = {}


def declare_settings(source: str, values: Mapping[str, Any]) -> None:
    """Have `Settings.load` find these: stronger than a settings file, weaker than variables. Replaces the source's."""
    _declared[source] = dict(values)


def from_program() -> Iterator[tuple[str, str, Any]]:
    """The declared settings: source, name, value."""
    for source, values in list(_declared.items()):
        yield from ((source, name, value) for name, value in values.items())
