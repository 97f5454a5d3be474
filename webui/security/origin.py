"""The origin of a request: the host it was sent to, and whether another site's page made the browser send it."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers

#: The names of this machine that no other site can have.
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

#: `host` or `host:port`, without other parts of a URL, such as the user in `evil.example@127.0.0.1`.
_AUTHORITY = re.compile(r"(?:\[([0-9a-f:.]+)\]|([\w.-]+))(?::[0-9]{0,5})?", re.IGNORECASE | re.ASCII)

#: Headers that proxies add, besides those that begin with X-Forwarded.
_FORWARDING = frozenset(
    {"forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip", "cf-connecting-ip"}
)


def host_of(authority: str) -> str:
    """The host in `host:port`, in lower case and without brackets; "" if the text is not valid."""
    found = _AUTHORITY.fullmatch(authority)
    return (found[1] or found[2]).lower().rstrip(".") if found else ""


def allowed(host: str, names: Sequence[str]) -> bool:
    """Whether requests for this host are for us; a name may be a pattern such as *.example.com, or * for all."""
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
    """The first header that shows that a proxy passed the request on; "" if there is none."""
    return next((name for name in headers if name in _FORWARDING or name.startswith("x-forwarded")), "")


def is_cross_site(headers: Headers, host: str) -> bool:
    """Whether another site's page made a request that changes something; `host` is our host with its port.

    Current browsers send Sec-Fetch-Site and Origin, and both must be right; older ones send at least Referer.
    A request without any of them comes from no browser, or from one that only the forms' token protects.
    """
    site, sent_from = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site.lower() not in ("same-origin", "none"):
        return True
    if sent_from is None and site is None:
        sent_from = headers.get("referer")
    return sent_from is not None and _authority(sent_from) != host.lower()


def _authority(url: str) -> str:
    """`host:port` of a URL, without the scheme's default port; "" for a text without a host, such as `null`."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return ""
    host = "" if "@" in parts.netloc else parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    return shown if port in (None, {"http": 80, "https": 443}.get(parts.scheme)) else f"{shown}:{port}"
