"""Broker URLs: what they say, and how to print them without the password."""

from dataclasses import field
from urllib.parse import parse_qsl, unquote

from palermo.core.values import dataclass
from palermo.errors import UrlInvalid

DEFAULT_URL = "amqp://guest:guest@localhost:5672/"

_PORTS = {"amqp": 5672, "amqps": 5671}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A broker URL, read. ``str()`` of it shows ``***`` in place of the password, and so does ``repr()``."""

    scheme: str
    #: Host and port, in the order to be tried; empty for a file.
    hosts: tuple[tuple[str, int], ...] = ()
    username: str = ""
    password: str = field(default="", repr=False)
    #: AMQP's virtual host, "/" where the URL names none.
    vhost: str = "/"
    #: The path of the embedded broker's file; ":memory:" for one that ends with its process.
    path: str = ""
    #: The query, by the client library's own names.
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        if self.scheme == "sqlite":
            return f"sqlite:///{self.path}"
        user = f"{self.username}:***@" if self.username else ""
        hosts = ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in self.hosts)
        vhost = "/" if self.vhost == "/" else f"/{self.vhost}"
        return f"{self.scheme}://{user}{hosts}{vhost}"


def parse_url(url: str) -> Address:
    """The address a URL names.

    Raises UrlInvalid, in words that hold no password. `redis://` parses and is refused
    when opened, until its broker is there.
    """
    scheme, found, rest = url.partition("://")
    scheme = scheme.lower()
    if not found or not scheme.isalnum():
        raise UrlInvalid(
            "the broker URL has no scheme. Write amqp://user:password@host:5672/vhost or sqlite:///file.db."
        )
    rest, _, query = rest.partition("?")
    options = tuple(parse_qsl(query, keep_blank_values=True))
    if scheme == "sqlite":
        return _sqlite(rest, options)
    authority, _, path = rest.partition("/")
    if "/" in path:
        raise UrlInvalid(f"the virtual host in the {scheme} URL has a slash; write it as %2F.")
    credentials, _, hosts = authority.rpartition("@")
    username, colon, password = credentials.partition(":")
    port = _PORTS.get(scheme, 0)
    return Address(
        scheme=scheme,
        hosts=tuple(_host(part, port) for part in hosts.split(",")),
        username=unquote(username) if credentials else "guest",
        password=unquote(password) if colon else "guest" if not credentials else "",
        vhost=unquote(path) or "/",
        options=options,
    )


def _sqlite(rest: str, options: tuple[tuple[str, str], ...]) -> Address:
    if not rest.startswith("/"):
        raise UrlInvalid(
            "a SQLite URL has three slashes before a relative path and four before an absolute one: sqlite:///jobs.db."
        )
    path = unquote(rest[1:])
    if not path:
        raise UrlInvalid("the SQLite URL names no file. Write sqlite:///jobs.db.")
    return Address(scheme="sqlite", path=path, options=options)


def _host(text: str, default_port: int) -> tuple[str, int]:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise UrlInvalid(f"port {port!r} in the broker URL is not a number from 1 to 65535.")
    return unquote(host) or "localhost", int(port) if port else default_port
