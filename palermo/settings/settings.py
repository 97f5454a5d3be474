"""The settings: where they come from, how they are checked, and what they mean.

From weakest to strongest: the defaults below; a file; what the configuration of a framework holds
(`declare_settings`); `PALERMO_*` variables; arguments of the program, or flags. The file is the first one
found going up from the current directory: `palermo.toml` with the settings at its top, or a `pyproject.toml` that has a
table [tool.palermo]; if a directory has both, palermo.toml. No file above it is read.
Only this folder reads the environment.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import quote

from msgspec import Struct, field
from msgspec.structs import force_setattr

from palermo.contract.events import EVENTS_AGE, EVENTS_BYTES
from palermo.core.address import DEFAULT_URL, Address, parse_url
from palermo.core.journal_records import JOURNAL_AGE, JOURNAL_BYTES
from palermo.core.text import nearest
from palermo.core.topology import DEFAULT_EXCHANGE, DEFAULT_QUEUE
from palermo.errors import QueueNameInvalid, SettingInvalid, UrlInvalid
from palermo.settings.arguments import SettingArgumentsAndUrl
from palermo.settings.environment import from_environment
from palermo.settings.readers import READERS, WrongValue

if TYPE_CHECKING:
    from palermo.contract.broker import SessionParameters
    from palermo.contract.serialization import Serializers

#: The settings that are secrets as a whole.
_SECRETS = ("web_secret", "web_oidc_client_secret", "metrics_token")

#: Settings whose values an error must not repeat.
_NOT_SHOWN = ("url", "signing_keys", "web_token", *_SECRETS)

#: Every form in which the table [tool], or [tool.palermo], may begin in a pyproject.toml.
_MENTIONED = re.compile(rb"""tool["']?\s*(\]|=|\.\s*["']?palermo)""")


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of one program; every value is checked when the object is made.

    Raises SettingInvalid naming the setting. `repr()` shows no password and no key.
    """

    #: The broker. A relative SQLite path in a settings file is relative to that file.
    url: str = DEFAULT_URL
    #: Keeps several systems on one broker apart; a name without dots.
    exchange: str = DEFAULT_EXCHANGE
    #: The type of queues that RabbitMQ has yet to make: "classic", on one node, or "quorum", on a majority of them.
    queue_type: str = "classic"
    #: How workers serve the tenants of a queue: "turn", one after the other, or "random". Both go by their shares.
    tenant_order: str = "turn"
    #: The queue of a job that names none.
    default_queue: str = DEFAULT_QUEUE
    #: How arguments are serialized, by name: "json", "msgpack", "pickle" or one that is installed.
    serializer: str = "json"
    #: "gzip" or "zstd"; "" or "none" for none.
    compression: str = ""
    #: Whether jobs are signed, with the first of the signing keys.
    sign: bool = False
    #: Keys that verify signatures; the first one also signs. In a variable: separated by commas, or a JSON
    #: array; the same holds for the imports.
    signing_keys: tuple[str, ...] = ()
    #: Seconds that enqueuing one job may take, including everything that goes wrong on the way.
    publish_timeout: float = 5.0
    #: Modules that hold jobs, for workers and commands that name none.
    imports: tuple[str, ...] = ()
    #: Recurring jobs, by name: each a table with `job`, `cron` or `every`, and more: docs/learn/recurring.md.
    schedule: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Whether the failed jobs of each queue lie apart, in `failed:<queue>`, instead of all in `failed`.
    failed_per_queue: bool = False
    #: Seconds after which a failed job is dropped; None ("none" in a file or variable) to keep it.
    failed_max_age: float | None = None
    #: How many failed jobs are kept, the newest ones; None for all.
    failed_max_count: int | None = None
    #: How many workers may die while they run a job before it fails as WorkerDied; None for any number.
    max_deaths: int | None = 3
    #: What the journal records: "off" nothing, "failures" what goes wrong and how many jobs did what, "all" every job.
    journal: str = "all"
    #: The most bytes of a job's arguments that the journal records at level "all"; 0 for no arguments.
    journal_arguments: int = 2_000
    #: The journal's size limit on the broker, in bytes, and for how many seconds it is kept. RabbitMQ learns
    #: both when the journal is made.
    journal_max_size: int = JOURNAL_BYTES
    journal_max_age: float = JOURNAL_AGE
    #: The prefix of the names by which events travel: `<prefix>_gateway`; "" for the name of the exchange.
    events_prefix: str = ""
    #: What happens to events that nobody subscribes to: "keep" them for a while, like all others, or "refuse" them.
    events_unsubscribed: str = "keep"
    #: For how many seconds events are kept, and how many bytes they take on the broker at most. RabbitMQ learns
    #: both when the first event is published or subscribed to.
    events_max_age: float = EVENTS_AGE
    events_max_size: int = EVENTS_BYTES
    #: The greatest size of a kept result, in bytes.
    max_result: int = 65_536
    #: The deployed release, as statistics show it: a version, or a commit. Workers report it.
    release: str = ""
    #: The address and port on which a worker serves metrics to Prometheus; None for no metrics.
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    #: The token that a scraper must send to a worker and to the web process; "" for none.
    metrics_token: str = ""
    #: Where `palermo web` listens; an address other than loopback requires a file of users.
    web_host: str = "127.0.0.1"
    web_port: int = 3000
    #: Host names that the web pages answer to, besides those of loopback: names, or patterns such as `*.example.com`.
    web_hosts: tuple[str, ...] = ()
    #: The file of users and their passwords' hashes; relative to a settings file that names it.
    web_users: str = ""
    #: The OpenID provider that signs users in, as the address under which it serves /.well-known/openid-configuration.
    web_oidc_issuer: str = ""
    #: How the provider knows these pages; no secret for a public client.
    web_oidc_client_id: str = ""
    web_oidc_client_secret: str = ""
    #: What is asked of the provider, and the claim in its answer that decides on a user's role.
    web_oidc_scopes: tuple[str, ...] = ("openid", "profile", "email")
    web_oidc_claim: str = "groups"
    #: The role for each value of that claim, as VALUE=ROLE; * is any user of the provider. The highest one counts.
    web_oidc_roles: tuple[str, ...] = ()
    #: After how many seconds a signed-in browser must sign in again.
    web_session: float = 43_200.0
    #: Whether `palermo web` without users makes a token when it starts, and lets nobody in without it.
    web_token: bool = True
    #: Whether nothing can be changed from the web.
    web_read_only: bool = False
    #: The prefix that a proxy takes from the beginning of every path: `/palermo`.
    web_prefix: str = ""
    #: Whether X-Forwarded-For, -Host, -Prefix and -Proto are believed, because a proxy of ours writes them.
    web_trust_proxy: bool = False
    #: Names of arguments, and of keys in them, whose values the web hides from everybody, and
    #: the journal does not record; letter case does not matter.
    web_redact: tuple[str, ...] = ("*password*", "*passwd*", "*secret*", "*token*", "*key*", "*credential*")
    #: The key that signs forms and sessions, the same in all processes that serve one site. Without it each start makes
    #: its own.
    web_secret: str = ""

    def __post_init__(self) -> None:
        for name, read in READERS.items():
            force_setattr(self, name, _read(name, read, getattr(self, name), source=""))
        if self.sign and not self.signing_keys:
            raise SettingInvalid("sign is on, and signing_keys holds no key to sign with. Set PALERMO_SIGNING_KEYS.")

    @classmethod
    def load(cls, **overrides: Unpack[SettingArgumentsAndUrl]) -> "Settings":
        """The settings of this process, from file, program, environment and, strongest, arguments; None is not given.

        Raises SettingInvalid naming the setting, its value and where it came from.
        """
        found: dict[str, Any] = {}
        given = (("", name, value) for name, value in overrides.items())
        for source, name, value in (*from_file(), *from_program(), *from_environment(), *given):
            if name not in READERS:
                where = f" in {source}" if source else ""
                if name == "tool" and source.endswith("palermo.toml"):
                    raise SettingInvalid(f"{source} has a table [tool]. Settings stand at its top, without that table.")
                known = ", ".join(READERS)
                raise SettingInvalid(
                    f"there is no setting {name!r}{where}.{nearest(name, READERS)} The settings are {known}."
                )
            if value is not None:
                found[name] = _read(name, READERS[name], value, source=source)
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
        shown["signing_keys"] = ("***",) * len(self.signing_keys)
        for name in _SECRETS:
            shown[name] = "***" if shown[name] else ""
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def environment(settings: Settings) -> dict[str, str]:
    """This process's environment with the settings in it, for a child process that loads them from there."""
    given: dict[str, str] = {}
    for name in READERS:
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
    """The settings that Settings.load(**overrides) would not take from the defaults, each with what decides it."""
    settings = Settings.load(**overrides)
    given = (("given", name, value) for name, value in overrides.items() if value is not None)
    origins = {name: origin for origin, name, _ in (*from_file(), *from_program(), *from_environment(), *given)}
    shown = {name: str(getattr(settings, name)) for name in origins}
    shown |= {"url": str(settings.address), "signing_keys": f"{len(settings.signing_keys)} not shown"}
    shown |= dict.fromkeys(_SECRETS, "not shown")
    return [SettingOrigin(setting=name, origin=origin, shown=shown[name]) for name, origin in origins.items()]


def _read(name: str, read: Callable[[Any], Any], value: Any, *, source: str) -> Any:
    """Read a setting's value. Raises SettingInvalid, without the value if it may hold a secret."""
    where = f" (from {source})" if source else ""
    try:
        # A line of a .env file or a secret in a file often ends in a line break.
        return read(value.strip() if isinstance(value, str) else value)
    except WrongValue as wrong:
        shown = "a value that is not shown" if name in _NOT_SHOWN else repr(value)
        raise SettingInvalid(f"setting {name} is {shown}{where} and must be {wrong}.") from None
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
        raise SettingInvalid(f"settings file {path} is not TOML: {error}. Mend it.") from None
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
