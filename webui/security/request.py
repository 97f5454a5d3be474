"""The parts of a request that the guard checks: path, host, origin, proxy headers and body.

The path passed by the server is already decoded, so slashes within names can't be recognized. Therefore the guard
rebuilds it from the raw path, leaving slashes in queue names and job ids encoded. The convertor `palermo` decodes each
part after the route is found.
"""

import asyncio
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

from palermo.webui import tuning
from palermo.webui.site import Refused

#: The names of this machine that no other site can have.
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")

#: The methods without side effects.
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

#: `host` or `host:port`, without other parts of a URL, such as the user in `evil.example@127.0.0.1`.
_AUTHORITY = re.compile(r"(?:\[([0-9a-f:.]+)\]|([\w.-]+))(?::[0-9]{0,5})?", re.IGNORECASE | re.ASCII)

#: Headers added by proxies, besides those that begin with X-Forwarded.
_FORWARDING = frozenset(
    {"forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip", "cf-connecting-ip"}
)

#: A path prefix, such as /palermo.
_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")

#: Maximum size of a body in bytes, enough for edited arguments and lists of ids. Files aren't accepted.
MAX_BODY = 2 * 1024 * 1024

#: Maximum number of form fields. A page for choosing jobs has a few hundred.
MAX_FIELDS = 10_000

FORM, JSON = "application/x-www-form-urlencoded", "application/json"


# -- the path


class NameConvertor(Convertor[str]):
    """A percent-encoded name as one part of a path."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


register_url_convertor("palermo", NameConvertor())


def split_path(scope: Scope) -> tuple[str, str]:
    """Return the root under which the application is mounted, and the path below it with `%` and `/` in names encoded.

    Raises Refused (400).
    """
    root: str = scope.get("root_path", "").rstrip("/")
    parts = [_decoded(part) for part in _raw(scope).split("/")]
    above = root.split("/") if root else [""]
    if root and parts[: len(above)] == above:
        parts = ["", *parts[len(above) :]]
    return root, "/".join(part.replace("%", "%25").replace("/", "%2F") for part in parts) or "/"


def moved(root: str, path: str) -> dict[str, Any]:
    """Return the path entries of an ASGI scope for this root and path."""
    return {"root_path": root, "path": root + path, "raw_path": (quote(root) + quote(path, safe="/%")).encode()}


def _raw(scope: Scope) -> str:
    raw: bytes | None = scope.get("raw_path")
    if raw is None:
        return quote(scope["path"])
    return raw.partition(b"?")[0].decode("latin-1")


def _decoded(part: str) -> str:
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise Refused(400, "the address is not valid UTF-8.") from None


# -- the host, and whether the request was caused by another site's page


def host_of(authority: str) -> str:
    """Return the host of `host:port`, in lower case and without brackets; "" if the text is invalid."""
    found = _AUTHORITY.fullmatch(authority)
    return (found[1] or found[2]).lower().rstrip(".") if found else ""


def is_allowed_host(host: str, names: Sequence[str]) -> bool:
    """Whether a host is ours. Names may be patterns such as *.example.com, or * for all."""
    return any(fnmatchcase(host, name.lower()) for name in (*LOOPBACK_NAMES, *names))


def is_loopback(host: str) -> bool:
    """Whether an address is a loopback address, or a name means localhost."""
    try:
        return ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")


def is_near(client: str) -> bool:
    """Whether a request came from this machine: from a loopback address, or over a socket without addresses."""
    try:
        address = ip_address(client.partition("%")[0])
    except ValueError:
        return True
    return address.is_loopback or bool(getattr(address, "ipv4_mapped", None) and address.ipv4_mapped.is_loopback)  # type: ignore[union-attr]


def forwarding_header(headers: Headers) -> str:
    """Return the first header added by a forwarding proxy, or ""."""
    return next((name for name in headers if name in _FORWARDING or name.startswith("x-forwarded")), "")


def is_cross_site(headers: Headers, host: str) -> bool:
    """Whether another site's page may have caused a request that makes changes. `host` is our host with its port.

    Browsers send Sec-Fetch-Site or Origin, and each of them must be right if sent. A request with a cookie but without
    either header counts as cross-site, because it must come from a browser too old to send them.
    """
    site, sent_from = headers.get("sec-fetch-site"), headers.get("origin")
    if site is None and sent_from is None:
        return "cookie" in headers
    if site is not None and site.lower() not in ("same-origin", "none"):
        return True
    return sent_from is not None and _authority(sent_from) != host.lower()


def _authority(url: str) -> str:
    """Return a URL's `host:port` without the scheme's default port; "" if there is no host, as in `null`."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return ""
    host = "" if "@" in parts.netloc else parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    return shown if port in (None, {"http": 80, "https": 443}.get(parts.scheme)) else f"{shown}:{port}"


# -- the request as seen by the browser, in front of a reverse proxy


class ForwardedRequest(NamedTuple):
    """A request as seen by the browser."""

    #: The prefix that the proxy removed from the path.
    prefix: str
    #: Includes the port unless it is the scheme's default.
    host: str
    scheme: str
    #: The client's address; "" if the request came over a socket without addresses.
    client: str


def forwarded_request(scope: Scope, headers: Headers, *, prefix: str, trusted: bool) -> ForwardedRequest:
    """Return the request as seen by the browser.

    X-Forwarded-* headers are used only from a trusted proxy, and only their last values, which that proxy wrote.
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
    """Return the prefix without a trailing slash. Raises ValueError if it isn't a path."""
    prefix = text.rstrip("/")
    if prefix and (_PREFIX.fullmatch(prefix) is None or {".", ".."} & set(prefix.split("/"))):
        raise ValueError(f"{text!r} is not a path prefix; write, for example, /palermo")
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
    """Return the value written by the nearest proxy, which appends it to the untrusted value that it received."""
    return ",".join(headers.getlist(name)).rpartition(",")[2].strip()


# -- the body, read completely, in limited time and memory, before any code uses it


async def read_body(receive: Receive, headers: Headers) -> bytes:
    """Read the whole body. Raises Refused: 413 if it is too large, 408 if it is too slow or incomplete."""
    size = headers.get("content-length", "")
    if size.isdecimal() and int(size[:20]) > MAX_BODY:
        raise _too_large()
    body = bytearray()
    try:
        async with asyncio.timeout(tuning.STALE):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused(408, "the request was interrupted.")
                body += message.get("body", b"")
                if len(body) > MAX_BODY:
                    raise _too_large()
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise Refused(408, f"the request did not arrive within {tuning.STALE:g} s.") from None


def replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that first returns the body, and then calls the real `receive`."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return waiting.pop() if waiting else await receive()

    return again


def media_type(headers: Headers) -> str:
    """Return the body's media type without parameters; "" without a Content-Type."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def check_media_type(headers: Headers, body: bytes, wanted: str) -> None:
    """Raise Refused (415) if the Content-Type isn't `wanted`. A request without a body needs none."""
    given = media_type(headers)
    if given != wanted and (given or body):
        raise Refused(
            415,
            f"the Content-Type is {given}; it must be {wanted}."
            if given
            else f"the request has a body, but no Content-Type; it must be {wanted}.",
        )


def check_fields(body: bytes) -> None:
    """Raise Refused (413) for a form with too many fields."""
    if body.count(b"&") >= MAX_FIELDS:
        raise Refused(413, f"the form has more than {MAX_FIELDS:,} fields.")


def _too_large() -> Refused:
    return Refused(413, f"the request's body is too large; the maximum is {MAX_BODY:,} bytes.", {"Connection": "close"})
