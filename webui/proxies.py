"""What a reverse proxy changed: the prefix it took from paths, and what it says of the browser's side."""

import re
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.types import Scope

_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")


class Outside(NamedTuple):
    """A request, as the browser made it."""

    #: What the proxy took from the path.
    prefix: str
    #: With its port, unless that is the scheme's own.
    host: str
    scheme: str
    #: "" where it came by a socket that has no addresses.
    client: str


def outside(scope: Scope, headers: Headers, *, prefix: str, trusted: bool) -> Outside:
    """What the browser asked; X-Forwarded-* count only from a proxy that is trusted, and there only what it added.

    `prefix` is the one configured, which a trusted proxy's own may replace.
    """
    client = scope.get("client")
    found = Outside(prefix, headers.get("host", ""), scope.get("scheme", "http"), client[0] if client else "")
    if trusted:
        found = Outside(
            _prefix(headers, prefix),
            _last(headers, "x-forwarded-host") or found.host,
            _scheme(headers) or found.scheme,
            _last(headers, "x-forwarded-for") or found.client,
        )
    port = {"http": ":80", "https": ":443"}.get(found.scheme, "")
    return found._replace(host=found.host.lower().removesuffix(port) if port else found.host.lower())


def check_prefix(text: str) -> str:
    """A prefix without a slash at its end; "" for none. Raises ValueError for what is no path."""
    prefix = text.rstrip("/")
    if prefix and (_PREFIX.fullmatch(prefix) is None or {".", ".."} & set(prefix.split("/"))):
        raise ValueError(f"{text!r} is no prefix of paths; write it as /palermo")
    return prefix


def _prefix(headers: Headers, configured: str) -> str:
    given = _last(headers, "x-forwarded-prefix")
    try:
        return check_prefix(given) if given else configured
    except ValueError:
        return configured


def _scheme(headers: Headers) -> str:
    scheme = _last(headers, "x-forwarded-proto").lower()
    return scheme if scheme in ("http", "https") else ""


def _last(headers: Headers, name: str) -> str:
    """What the nearest proxy wrote: it adds to what it got, which anybody may have sent."""
    return ",".join(headers.getlist(name)).rpartition(",")[2].strip()
