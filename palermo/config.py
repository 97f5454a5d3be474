"""Settings: where they come from, what they may be, and what they say.

From weakest to strongest: the defaults below; a file; `PALERMO_*` variables; what the
program or a flag gives. The file is the first one found going up from the current
directory: `palermo.toml` with the settings at its top, or a `pyproject.toml` that has a
table [tool.palermo]; where a directory has both, palermo.toml. No file above it is read.
This is the only place that reads the environment.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from palermo.core.address import DEFAULT_URL, Address, parse_url
from palermo.core.journal import JOURNAL_AGE, JOURNAL_BYTES
from palermo.core.topology import DEFAULT_EXCHANGE, DEFAULT_QUEUE
from palermo.core.values import dataclass
from palermo.errors import QueueNameInvalid, SettingInvalid, UrlInvalid
from palermo.events import EVENTS_AGE, EVENTS_BYTES
from palermo.readers import READERS, Wrong
from palermo.readers import parse_duration as parse_duration
from palermo.registry import JobDefinition, nearest

if TYPE_CHECKING:
    from palermo.broker import Session
    from palermo.serialization import Serializers


@dataclass(frozen=True, kw_only=True, repr=False)
class Settings:
    """What a program was told about its broker and its jobs; every value is checked when it is made.

    Raises SettingInvalid naming the setting. `repr()` shows no password and no key.
    """

    #: The broker. A relative SQLite path in a settings file is relative to that file.
    url: str = DEFAULT_URL
    #: Keeps several systems on one broker apart; a name without dots.
    exchange: str = DEFAULT_EXCHANGE
    #: What RabbitMQ makes of queues that are not there yet: "classic", on one node, or "quorum", on a majority of them.
    queue_type: str = "classic"
    #: How workers serve the tenants of a queue: "turn", one after the other, or "random". By their shares in both.
    tenant_order: str = "turn"
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
    #: Recurring jobs, by name: each a table with `job`, `cron` or `every`, and what else docs/recurring.md has.
    schedule: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    #: Whether the failed jobs of every queue lie apart, in `failed:<queue>`, instead of all in `failed`.
    failed_per_queue: bool = False
    #: Seconds after which a failed job is dropped; None ("none" in a file or variable) to keep it.
    failed_max_age: float | None = None
    #: How many failed jobs are kept, the newest; None for all.
    failed_max_count: int | None = None
    #: How many workers may die while they run a job before it fails as WorkerDied; None for any number.
    max_deaths: int | None = 3
    #: What is written down: "off" nothing, "failures" what goes wrong and how many jobs did what, "all" every job.
    journal: str = "failures"
    #: The most that the journal takes on the broker, in bytes, and for how many seconds it is kept. RabbitMQ learns
    #: of both when the journal is made.
    journal_max_size: int = JOURNAL_BYTES
    journal_max_age: float = JOURNAL_AGE
    #: What the names begin with by which events travel: `<prefix>_gateway`; "" for the name of the exchange.
    events_prefix: str = ""
    #: What becomes of events that nobody subscribes to: "keep" them for a while, as all others too, or "refuse" them.
    events_unsubscribed: str = "keep"
    #: For how many seconds events are kept, and the most that they take on the broker, in bytes. RabbitMQ learns of
    #: both when the first event is published or subscribed to.
    events_max_age: float = EVENTS_AGE
    events_max_size: int = EVENTS_BYTES
    #: The most that a kept result may measure, in bytes.
    max_result: int = 65_536
    #: What is deployed, as statistics mark it: a version, or a commit. Workers tell it.
    release: str = ""
    #: Where a worker tells Prometheus of itself, from which port; None for nowhere.
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    #: What a scraper must show, of a worker and of the web process; "" for nothing.
    metrics_token: str = ""
    #: Where `palermo web` listens; on anything but loopback it wants a file of users.
    web_host: str = "127.0.0.1"
    web_port: int = 3000
    #: Host names that the web pages answer to, besides those of loopback: names, or patterns such as `*.example.com`.
    web_hosts: tuple[str, ...] = ()
    #: The file of users and their passwords' hashes; relative to a settings file that names it.
    web_users: str = ""
    #: Whether nothing can be changed from the web.
    web_read_only: bool = False
    #: What a proxy takes from the beginning of every path: `/palermo`.
    web_prefix: str = ""
    #: Whether X-Forwarded-For, -Host, -Prefix and -Proto are believed, because a proxy of ours writes them.
    web_trust_proxy: bool = False
    #: Names of arguments and of keys in them whose values the web shows to nobody, in any case of letters.
    web_redact: tuple[str, ...] = ("*password*", "*passwd*", "*secret*", "*token*", "*key*", "*credential*")
    #: Signs forms; to be the same in all processes that serve one site. Without it each start makes its own.
    web_secret: str = ""

    def __post_init__(self) -> None:
        for name, read in READERS.items():
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
            if name not in READERS:
                where = f" in {source}" if source else ""
                known = ", ".join(READERS)
                raise SettingInvalid(
                    f"there is no setting {name!r}{where}.{nearest(name, READERS)} The settings are {known}."
                )
            if value is not None:
                found[name] = _read(name, READERS[name], value, source=source)
        return cls(**found)

    @property
    def address(self) -> Address:
        """The broker's URL, read; its text shows no password."""
        return parse_url(self.url)

    def session(self, name: str) -> "Session":
        """How to open a broker with these settings; `name` is what the session is for."""
        from palermo.broker import Session

        return Session(
            address=self.address,
            exchange=self.exchange,
            queue_type=self.queue_type,
            tenant_order=self.tenant_order,
            timeout=self.publish_timeout,
            journal_bytes=self.journal_max_size,
            journal_age=self.journal_max_age,
            events_prefix=self.events_prefix,
            keep_events=self.events_unsubscribed == "keep",
            events_bytes=self.events_max_size,
            events_age=self.events_max_age,
            name=name,
        )

    @property
    def prefix(self) -> str:
        """What the names of exchanges and queues begin with that carry events."""
        return self.events_prefix or self.exchange

    def queue_of(self, job: JobDefinition) -> str:
        """Where a job waits unless an enqueue says otherwise. Raises QueueNameInvalid."""
        if job.subscribes is not None:
            return job.subscribes.queue(self.exchange, self.prefix)
        return job.queue or self.default_queue

    def serializers(self) -> "Serializers":
        """A new registry of all serializers that are installed, with the signing keys."""
        from palermo.serialization import Serializers

        return Serializers.default(signing_keys=self.signing_keys)

    def __repr__(self) -> str:
        shown = {each.name: getattr(self, each.name) for each in fields(self)}
        shown["url"] = str(self.address)
        shown["signing_keys"] = ("***",) * len(self.signing_keys)
        for name in ("web_secret", "metrics_token"):
            shown[name] = "***" if shown[name] else ""
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def environment(settings: Settings) -> dict[str, str]:
    """This process's environment with the settings in it, for a child that loads them from there."""
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
    shown |= dict.fromkeys(("web_secret", "metrics_token"), "not shown")
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


#: What an error must not repeat.
_NOT_SHOWN = ("url", "signing_keys", "web_secret", "metrics_token")


#: However a table of tools, or ours in it, may begin in a pyproject.toml.
_MENTIONED = re.compile(rb"""tool["']?\s*(\]|=|\.\s*["']?palermo)""")


def _read(name: str, read: Callable[[Any], Any], value: Any, *, source: str) -> Any:
    """The value as its setting has it. Raises SettingInvalid, without the value where it may hold a secret."""
    where = f" (from {source})" if source else ""
    try:
        return read(value)
    except Wrong as wrong:
        shown = "a value that is not shown" if name in _NOT_SHOWN else repr(value)
        raise SettingInvalid(f"setting {name} is {shown}{where} and must be {wrong}.") from None
    except UrlInvalid as error:
        raise UrlInvalid(f"{error}{f' It was read from {source}.' if source else ''}") from None
    except (SettingInvalid, QueueNameInvalid) as error:
        raise SettingInvalid(f"setting {name}{where}: {error}") from None


def _from_environment() -> Iterator[tuple[str, str, Any]]:
    """Where from, which setting, and its value. An empty variable counts as not set: so a container leaves one out."""
    for name in READERS:
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
    if inside and not _MENTIONED.search(data):
        return None
    import tomllib  # for those who have settings in a file: it takes longer to import than all else here

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
    if name == "web_users" and isinstance(value, str) and value not in ("", "none"):
        return str(directory / value)
    return value
