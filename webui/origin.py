"""Where a request comes from: the host it was sent to, and whether another site's page had the browser send it."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers

#: The names of this machine that no other site can have.
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def host_of(authority: str) -> str:
    """The host in `host:port`, in lower case and without brackets; "" if it is none."""
    try:
        return (urlsplit(f"//{authority}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def allowed(host: str, names: Sequence[str]) -> bool:
    """Whether requests for this host are for us; a name may be a pattern such as *.example.com, or * for all."""
    return any(fnmatchcase(host, name.lower()) for name in (*LOOPBACK_NAMES, *names))


def is_loopback(host: str) -> bool:
    """Whether an address or a name is this machine, as seen from itself."""
    try:
        return ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")


def is_near(client: str) -> bool:
    """Whether a request came from this machine: from a loopback address, or by a socket that has no addresses."""
    try:
        address = ip_address(client.partition("%")[0])
    except ValueError:
        return True
    return address.is_loopback or bool(getattr(address, "ipv4_mapped", None) and address.ipv4_mapped.is_loopback)  # type: ignore[union-attr]


def is_cross_site(headers: Headers, host: str) -> bool:
    """Whether a request that changes something was made by a page that is not ours; `host` is ours, with its port.

    A browser of today says so in Sec-Fetch-Site, others send Origin or at least Referer. What
    sends none of them is no browser, or one for which the forms' token has to do.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site.lower() not in ("same-origin", "none")
    for name in ("origin", "referer"):
        value = headers.get(name)
        if value is not None:
            return _authority(value) != host.lower()
    return False


def _authority(url: str) -> str:
    """`host:port` of a URL, without the port where it is its scheme's; "" for what has none, such as `null`."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return ""
    host = parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    return shown if port in (None, {"http": 80, "https": 443}.get(parts.scheme)) else f"{shown}:{port}"
