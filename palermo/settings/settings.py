"""The settings: their sources, checks and meanings.

Sources in order of increasing precedence: the defaults in palermo.settings.table; a file; a framework's configuration
(`declare_settings`); `PALERMO_*` variables; the program's arguments or flags. The file is the first one found going up
from the current directory: a `palermo.toml` with top-level settings, or a `pyproject.toml` with a table [tool.palermo].
If a directory has both, palermo.toml is used. Only this folder reads the environment.
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

#: Any syntax that may start the table [tool] or [tool.palermo] in a pyproject.toml.
_MENTIONED = re.compile(rb"""tool["']?\s*(\]|=|\.\s*["']?palermo)""")


class Settings(SettingValues, frozen=True, kw_only=True):
    """The settings of a program, all of which are checked on creation.

    Raises SettingInvalid naming the setting. `repr()` doesn't contain passwords and keys.
    """

    def __post_init__(self) -> None:
        for name in SETTINGS:
            force_setattr(self, name, _read(name, getattr(self, name), source=""))
        if self.sign and not self.signing_keys:
            raise SettingInvalid("sign is on, but signing_keys has no key to sign with. Set PALERMO_SIGNING_KEYS.")

    @classmethod
    def load(cls, **overrides: Unpack[SettingArgumentsAndUrl]) -> "Settings":
        """Load this process's settings. Arguments take precedence over all other sources; None means not given.

        Raises SettingInvalid naming the setting, its value and its source.
        """
        found: dict[str, Any] = {}
        for source, name, value in _sources(overrides):
            if name not in SETTINGS:
                where = f" in {source}" if source else ""
                if name == "tool" and source.endswith("palermo.toml"):
                    raise SettingInvalid(
                        f"{source} has a [tool] table. Move the settings in it to the top level of the file."
                    )
                known = ", ".join(SETTINGS)
                raise SettingInvalid(
                    f"setting {name!r}{where} is unknown.{nearest(name, SETTINGS)} The settings are {known}."
                )
            if value is not None:
                found[name] = _read(name, value, source=source)
        return cls(**found)

    @property
    def address(self) -> Address:
        """The parsed broker URL. Its text doesn't contain the password."""
        return parse_url(self.url)

    def session(self, name: str, *, warns: bool = True, creates: bool = True) -> "SessionParameters":
        """Return the parameters of a broker session. `name` describes the purpose of the session."""
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
        """Prefix of the names of exchanges and queues for events."""
        return self.events_prefix or self.exchange

    def serializers(self) -> "Serializers":
        """Return the process's serializer registry, with the signing keys of these settings."""
        from palermo.contract.serialization import Serializers

        return Serializers.of_process(signing_keys=self.signing_keys)

    @property
    def has_sign_in(self) -> bool:
        """Whether users sign in to the web pages, with a users file or an OpenID provider."""
        return bool(self.web_users or self.web_oidc_issuer)

    def __hash__(self) -> int:
        return hash((self.url, self.exchange))  # `schedule` is a dict, which has no hash

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        shown["url"] = str(self.address)
        for name in _secrets():
            shown[name] = "***" if shown[name] else ""
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def environment(settings: Settings) -> dict[str, str]:
    """Return this process's environment with these settings, for a child process that loads them from it."""
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
    """The origin of a setting that isn't a default."""

    setting: str
    #: A file's path, a variable's name, or "given" for a flag or an argument.
    origin: str
    #: Its value, without secrets.
    shown: str


def setting_origins(**overrides: Unpack[SettingArgumentsAndUrl]) -> list[SettingOrigin]:
    """Return the settings that Settings.load(**overrides) wouldn't take from the defaults, with their origins."""
    settings = Settings.load(**overrides)
    origins = {name: origin or "given" for origin, name, value in _sources(overrides) if value is not None}
    shown = {name: str(getattr(settings, name)) for name in origins}
    shown |= {"url": str(settings.address), **dict.fromkeys(_secrets(), "not shown")}
    return [SettingOrigin(setting=name, origin=origin, shown=shown[name]) for name, origin in origins.items()]


def _sources(overrides: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield all given settings in order of increasing precedence: source ("" for `overrides`), name, value."""
    yield from (*from_file(), *from_program(), *from_environment())
    yield from (("", name, value) for name, value in overrides.items())


def _secrets() -> list[str]:
    return [name for name, row in SETTINGS.items() if row.secret]


def _read(name: str, value: Any, *, source: str) -> Any:
    """Read a setting's value. Raises SettingInvalid, without the value if it may contain a secret."""
    where = f" (from {source})" if source else ""
    try:
        # Lines in .env files and secrets in files often end in a line break.
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
    """Yield the settings in the settings file: source, name, value."""
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
    """If the settings file names modules, append its directory to Python's path.

    The modules are then found from any directory below it.
    """
    for source, name, _ in from_file():
        directory = os.path.dirname(source)
        if name == "imports" and directory not in sys.path:
            sys.path.append(directory)


def _table(path: Path, inside: Iterable[str]) -> Mapping[str, Any] | None:
    """Return the table of settings in a file; None if there is no such file or table."""
    if not os.path.isfile(path):  # unlike Path.is_file, returns False if the directory may not be searched
        return None
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingInvalid(f"settings file {path} cannot be read: {error.strerror}.") from None
    if inside and not _MENTIONED.search(data):
        return None
    import tomllib  # imported only if needed, because it is the slowest import here

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
    """Convert a relative path in a file's setting so that it is relative to the file."""
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


# -- settings in a program's own configuration, such as `PALERMO` in Django's settings

#: By source: the name used in errors, and the settings.
_declared: dict[str, dict[str, Any]] = {}


def declare_settings(source: str, values: Mapping[str, Any]) -> None:
    """Add settings to those found by `Settings.load`, replacing earlier ones from this source.

    They override the settings file, and are overridden by variables.
    """
    _declared[source] = dict(values)


def from_program() -> Iterator[tuple[str, str, Any]]:
    """Yield the declared settings: source, name, value."""
    for source, values in list(_declared.items()):
        yield from ((source, name, value) for name, value in values.items())
