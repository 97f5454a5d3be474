"""The browser's view of a request behind a reverse proxy: path prefix, host, scheme and client address."""

import re
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.types import Scope

_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")


class ForwardedRequest(NamedTuple):
    """A request as the browser made it."""

    #: The prefix that the proxy removed from the path.
    prefix: str
    #: With its port, unless that is the scheme's default.
    host: str
    scheme: str
    #: The client's address; "" if the request came over a socket without addresses.
    client: str


def forwarded_request(scope: Scope, headers: Headers, *, prefix: str, trusted: bool) -> ForwardedRequest:
    """The request as the browser made it.

    X-Forwarded-* headers count only from a trusted proxy, and only the last value of each, which that proxy wrote.
    `prefix` is the configured prefix; X-Forwarded-Prefix replaces it.
    """
    client = scope.get("client")
    found = ForwardedRequest(prefix, headers.get("host", ""), scope.get("scheme", "http"), client[0] if client else "")
    if trusted:
        found = ForwardedRequest(
            _prefix(headers, prefix),
            _last(headers, "x-forwarded-host") or found.host,
            _scheme(headers) or found.scheme,
            _last(headers, "x-forwarded-for") or found.client,
        )
    port = {"http": ":80", "https": ":443"}.get(found.scheme, "")
    return found._replace(host=found.host.lower().removesuffix(port) if port else found.host.lower())


def check_prefix(text: str) -> str:
    """The prefix without a slash at its end; "" for none. Raises ValueError if it is not a path."""
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
    """The value that the nearest proxy wrote. It appends to what it received, which anybody may have sent."""
    return ",".join(headers.getlist(name)).rpartition(",")[2].strip()
