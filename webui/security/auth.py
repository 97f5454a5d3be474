"""HTTP authentication by passwords and bearer tokens from a file of users. curl and browsers support it.

Failed attempts are slowed down by address and by name. Right passwords are
remembered for some minutes as keyed hashes, because a browser sends them with every request.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from palermo.webui.security.user_file import UserFile, token_hash, verify
from palermo.webui.site import Refused, User

log = logging.getLogger("palermo.audit")

#: The keys of the ASGI scope under which the guard stores the client's address, and our host as the browser wrote it.
CLIENT, HOST = "palermo.client", "palermo.host"

#: Seconds that a right password is remembered, and the most that are remembered.
_CACHED, _MAX_CACHED = 600.0, 1_000

#: Hashes computed at a time, and the most that may wait: each takes 64 MiB and some 50 ms.
_MAX_HASHING, _MAX_WAITING = 2, 32

#: Failures without a delay: of one name from one address, of one address, of one name from anywhere.
_FREE_FAILURES = (5, 30, 100)

#: The most keys that are remembered. A new one replaces the oldest.
_MAX_KEYS = 10_000

#: Seconds without a failure after which a key's failures are forgotten.
_FAILURES_KEPT = 900.0

_MAX_WAIT = 60.0


class FileAuthentication:
    """Finds the user of a request in a file of users; an `Authenticate`."""

    def __init__(self, path: str) -> None:
        """Raises SettingInvalid."""
        self._file = UserFile(path)
        self._throttle = Throttle(time.monotonic)
        self._key = secrets.token_bytes(32)
        #: When each remembered password expires, by its keyed hash.
        self._verified: OrderedDict[bytes, float] = OrderedDict()
        self._hashing = asyncio.Semaphore(_MAX_HASHING)
        self._waiting = 0

    async def __call__(self, request: Request) -> User | None:
        """The user; None without a secret or with a wrong one. Raises Refused (429) if the client must wait first."""
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        client = client_of(request)
        match scheme.lower():
            case "bearer":
                return self._by_token(value.strip(), client)
            case "basic":
                return await self._by_basic(value.strip(), client)
            case _:
                return None

    def _by_token(self, token: str, client: str) -> User | None:
        user = self._file.users().tokens.get(token_hash(token))
        if user is not None:
            return user  # Found by its hash: a right token is never slowed down.
        # A key of its own, not the address's: a program that goes on sending an old token must not block passwords.
        keys = [f"tokens {client}"]
        self._check_wait(keys, _FREE_FAILURES[1:2])
        self._count_failure(keys, "bearer token", client)
        return None

    async def _by_basic(self, encoded: str, client: str) -> User | None:
        try:
            name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        return await self.by_password(name, password, client) if colon else None

    def with_password(self, name: str) -> tuple[User, str] | None:
        """The user of this name with the hash of their password, as the file holds them now."""
        return self._file.users().passwords.get(name)

    async def by_password(self, name: str, password: str, client: str) -> User | None:
        """The user with this name and password; None if there is none. `client` is the address of the network.

        Raises Refused (429) if the client must wait first.
        """
        users = self._file.users()
        user, hashed = users.passwords.get(name, (None, users.dummy_hash))
        digest = hmac.new(self._key, f"{hashed}\0{password}".encode(), hashlib.sha256).digest()
        if user is not None and self._verified.get(digest, -math.inf) > time.monotonic():
            return user
        keys = [f"both {client} {name}", f"address {client}", f"name {name}"]
        self._check_wait(keys, _FREE_FAILURES)
        self._count_failure(keys)
        is_right = await self._verify(hashed, password)
        if user is None or not is_right:
            log.warning("sign-in failed by=%s from=%s", name, client or "-")
            return None
        for key in keys[:2]:
            self._throttle.succeeded(key)
        # The failures of others with this name stay counted: a sign-in must not give them new tries.
        self._throttle.take_back(keys[2])
        self._verified[digest] = time.monotonic() + _CACHED
        if len(self._verified) > _MAX_CACHED:
            self._verified.popitem(last=False)
        return user

    async def _verify(self, hashed: str, password: str) -> bool:
        if self._waiting >= _MAX_WAITING:
            raise _must_wait(1.0)
        self._waiting += 1
        try:
            async with self._hashing:
                return await run_in_threadpool(verify, hashed, password)
        finally:
            self._waiting -= 1

    def _check_wait(self, keys: list[str], free: tuple[int, ...]) -> None:
        seconds = max(self._throttle.wait(key, count) for key, count in zip(keys, free, strict=True))
        if seconds > 0:
            raise _must_wait(seconds)

    def _count_failure(self, keys: list[str], what: str = "", client: str = "") -> None:
        for key in keys:
            self._throttle.failed(key)
        if what:
            log.warning("sign-in failed by=%s from=%s", what, client or "-")


def _must_wait(seconds: float) -> Refused:
    whole = math.ceil(seconds)
    return Refused(429, f"too many wrong attempts: try again in {whole} s.", {"Retry-After": str(whole)})


def client_of(request: Request) -> str:
    """The addresses that the client of this request may control."""
    return network_of(str(request.scope.get(CLIENT, "")))


def network_of(client: str) -> str:
    """The addresses that one attacker may control: an IPv4 address, or an IPv6 network of 64 bits."""
    try:
        address = ip_address(client.partition("%")[0])
    except ValueError:
        return client
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or IPv6Address(int(address) >> 64 << 64))
    return client


class Throttle:
    """A throttle against guessing passwords: it counts failures by key.

    The first `free` failures cause no wait, then each causes 1, 2, 4 … at most 60 seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: The number of failures and the time of the last one, by key.
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def wait(self, key: str, free: int) -> float:
        """Seconds until an attempt with this key is allowed."""
        count, last = self._known(key)
        if count == 0 or count < free:
            return 0.0
        return max(0.0, last + min(_MAX_WAIT, 2.0 ** min(count - free, 10)) - self._clock())

    def failed(self, key: str) -> None:
        """Count an attempt as failed until it succeeds. So many attempts at once cannot get round the wait."""
        count, _ = self._known(key)
        self._failures[key] = (count + 1, self._clock())
        self._failures.move_to_end(key)
        if len(self._failures) > _MAX_KEYS:
            self._failures.popitem(last=False)

    def succeeded(self, key: str) -> None:
        """Forget the failures of this key."""
        self._failures.pop(key, None)

    def take_back(self, key: str) -> None:
        """Count one failure less, because the attempt succeeded. Earlier failures stay counted."""
        count, last = self._known(key)
        if count > 1:
            self._failures[key] = (count - 1, last)
        else:
            self._failures.pop(key, None)

    def _known(self, key: str) -> tuple[int, float]:
        count, last = self._failures.get(key, (0, 0.0))
        return (0, 0.0) if self._clock() - last > _FAILURES_KEPT else (count, last)
