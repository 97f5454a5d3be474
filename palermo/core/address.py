"""Broker URLs: parse them, build them from their parts, and print them without the password."""

import re
from urllib.parse import parse_qsl, quote, unquote, urlencode

from msgspec import Struct
from msgspec.structs import replace

from palermo.errors import UrlInvalid

DEFAULT_URL = "amqp://guest:guest@localhost:5672/"

_PORTS = {
    "amqp": 5672,
    "amqps": 5671,
    "redis": 6379,
    "rediss": 6379,
    "redis+sentinel": 26379,
    "rediss+sentinel": 26379,
}

#: The schemes whose hosts are Sentinels, without and with TLS.
_SENTINEL = ("redis+sentinel", "rediss+sentinel")

#: The schemes of Redis; redis+unix is a local socket. None of them has a user unless the URL names one.
_REDIS = ("redis", "rediss", "redis+unix", *_SENTINEL)

#: A password in a URL. Up to the last @ of a word, since a password may contain an unescaped @; without an @, the text
#: after a colon unless it is a port; or a query parameter. Compiled on first use.
_PASSWORD = r"(?<=://)(?:[^:@\s]*:\S*(?=@)|[^:@/\s\[]*:(?!\d+\b)[^/\s]+)"
_PASSWORD_PARAMETER = r"(?<=[?&]sentinel_password=)[^&\s]+"


class Address(Struct, frozen=True, kw_only=True):
    """A parsed broker URL. ``str()`` and ``repr()`` show ``***`` in place of the password."""

    scheme: str
    #: Hosts with ports, in the order in which they are tried; empty for a file.
    hosts: tuple[tuple[str, int], ...] = ()
    username: str = ""
    password: str = ""
    #: AMQP's virtual host, "/" by default; or the number of a Redis database.
    vhost: str = "/"
    #: The primary's name in Redis Sentinels, which are then the hosts; empty without Sentinels.
    service: str = ""
    #: Path of the embedded broker's file, ":memory:" for a store that ends with its process; or path of Redis's socket.
    path: str = ""
    #: The query parameters, named as in the client library.
    options: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"

    def __str__(self) -> str:
        if self.scheme == "sqlite":
            return f"sqlite:///{self.path}"
        user = f"{self.username}:***@" if self.username or self.password else ""
        if self.path:
            return f"{self.scheme}://{user}{self.path}"
        hosts = ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in self.hosts)
        service = f"/{self.service}" if self.service else ""
        vhost = "/" if self.vhost == "/" else f"/{self.vhost}"
        return f"{self.scheme}://{user}{hosts}{service}{vhost}"

    def after(self, host: tuple[str, int]) -> "Address":
        """The address with its hosts rotated, so that `host` is tried last."""
        behind = self.hosts.index(host) + 1
        return replace(self, hosts=self.hosts[behind:] + self.hosts[:behind])


def written(address: Address) -> str:
    """The URL of an AMQP address with its password: for settings and environments, never for display."""
    user, password, vhost = (quote(part, safe="") for part in (address.username, address.password, address.vhost))
    hosts = ",".join(f"{f'[{host}]' if ':' in host else quote(host, safe='')}:{port}" for host, port in address.hosts)
    query = f"?{urlencode(address.options)}" if address.options else ""
    return f"{address.scheme}://{user}:{password}@{hosts}/{'' if address.vhost == '/' else vhost}{query}"


class AddressParts(Struct, frozen=True, kw_only=True):
    """The parts of an AMQP address, each None if it isn't given."""

    #: One host or several, separated by commas, with or without ports.
    host: str | None = None
    port: int | None = None
    username: str | None = None
    password: str | None = None
    vhost: str | None = None

    def __repr__(self) -> str:
        return f"AddressParts(host={self.host!r}, port={self.port!r}, username={self.username!r}, vhost={self.vhost!r})"

    def of(self, address: Address) -> Address:
        """The address with these parts in place of its own. Raises UrlInvalid for an invalid host.

        A new host without a port gets the scheme's default port. A new user without a password gets none.
        """
        hosts = address.hosts
        if self.host is not None:
            port = _PORTS[address.scheme]
            bare = self.host.count(":") > 1 and not self.host.startswith("[")  # ::1
            hosts = ((self.host, port),) if bare else tuple(_host(part, port) for part in self.host.split(","))
        if self.port is not None:
            hosts = tuple((host, self.port) for host, _ in hosts)
        username, password = address.username, address.password
        if self.username is not None and self.username != username:
            username, password = self.username, "guest" if self.username == "guest" else ""
        return replace(
            address,
            hosts=hosts,
            username=username,
            password=password if self.password is None else self.password,
            vhost=address.vhost if self.vhost is None else self.vhost,
        )


def parse_url(url: str) -> Address:
    """Parse a URL.

    Raises UrlInvalid, whose text never contains the password.
    """
    scheme, found, rest = url.strip().partition("://")
    scheme = scheme.lower()
    if not found or not scheme.replace("+", "").isalnum():
        raise UrlInvalid(
            "the broker URL has no scheme. Write amqp://user:password@host:5672/vhost or sqlite:///file.db."
        )
    whole = rest
    rest, _, query = rest.partition("?")
    options = tuple(parse_qsl(query, keep_blank_values=True))
    if scheme == "sqlite":
        return _sqlite(rest, options)
    if scheme == "redis+unix":
        return _socket(rest, options)
    if "@" in whole.partition("/")[2] or "@" in query:
        # The text before such an @ is not a host but the start of a password.
        raise UrlInvalid(
            f"the {scheme} URL has an @ after its first / or ?. In the user, password and virtual host, write / as"
            " %2F, ? as %3F and @ as %40."
        )
    authority, _, path = rest.partition("/")
    service = ""
    if scheme in _SENTINEL:
        service, _, path = path.partition("/")
        if not service:
            raise UrlInvalid(
                "the URL of Redis Sentinel does not name the primary server. Write redis+sentinel://host:26379/NAME/0,"
                " with the NAME that sentinel.conf gives it."
            )
    if "/" in path:
        raise UrlInvalid(f"the virtual host in the {scheme} URL has a slash; write it as %2F.")
    credentials, _, hosts = authority.rpartition("@")
    username, colon, password = credentials.partition(":")
    port = _PORTS.get(scheme, 0)
    default = "" if scheme in _REDIS else "guest"
    return Address(
        scheme=scheme,
        hosts=tuple(_host(part, port) for part in hosts.split(",")),
        username=unquote(username) if credentials else default,
        password=unquote(password) if colon else default if not credentials else "",
        vhost=unquote(path) or "/",
        service=unquote(service),
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


def _socket(rest: str, options: tuple[tuple[str, str], ...]) -> Address:
    credentials, _, path = rest.rpartition("@")
    username, _, password = credentials.partition(":")
    if not path.startswith("/"):
        raise UrlInvalid("the URL of a Redis socket needs an absolute path. Write redis+unix:///run/redis.sock.")
    return Address(
        scheme="redis+unix",
        username=unquote(username),
        password=unquote(password),
        path=unquote(path),
        options=options,
    )


def _host(text: str, default_port: int) -> tuple[str, int]:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        # It may be a password without its @.
        raise UrlInvalid(
            "the port in the broker URL is not a number from 1 to 65535. Write amqp://user:password@host:5672/vhost,"
            " and in user and password / as %2F, ? as %3F and @ as %40."
        )
    return unquote(host) or "localhost", int(port) if port else default_port


def masked(text: str) -> str:
    """The text with the passwords in its URLs hidden. Also handles malformed URLs."""
    text = re.sub(_PASSWORD, lambda found: found[0].partition(":")[0] + ":***", text)
    return re.sub(_PASSWORD_PARAMETER, "***", text)
