"""Authentication by passwords and bearer tokens from a file of users: HTTP's own, so that curl and browsers know how.

What fails is slowed down (throttle.py) by address and by name. Passwords that proved right are
remembered for some minutes as keyed hashes: a browser sends them with every request.
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
from ipaddress import IPv6Address, ip_address

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from palermo.webui.errors import Refused
from palermo.webui.people import User
from palermo.webui.throttle import Throttle
from palermo.webui.userfile import UserFile, token_hash, verify

log = logging.getLogger("palermo.audit")

#: Where the guard leaves the address that a request came from, for whoever authenticates it.
CLIENT = "palermo.client"

#: Seconds that a right password is remembered, and how many are.
_REMEMBER, _MAX_REMEMBERED = 600.0, 1_000

#: How many hashes are made at a time, and how many may wait for that: each takes 64 MiB and some 50 ms.
_AT_A_TIME, _MAX_WAITING = 2, 32

#: How many failures are free: of one name from one address, of an address, of a name from anywhere.
_FREE = (5, 30, 100)


class FileAuthentication:
    """Asks a file of users whose a request is; an `Authenticate`."""

    def __init__(self, path: str) -> None:
        """Raises SettingInvalid."""
        self._file = UserFile(path)
        self._throttle = Throttle(time.monotonic)
        self._key = secrets.token_bytes(32)
        #: Until when, by what a request said.
        self._right: OrderedDict[bytes, float] = OrderedDict()
        self._hashing = asyncio.Semaphore(_AT_A_TIME)
        self._waiting = 0

    async def __call__(self, request: Request) -> User | None:
        """The user; None for nobody or a wrong secret. Raises Refused (429) for who must wait first."""
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        client = _network(str(request.scope.get(CLIENT, "")))
        match scheme.lower():
            case "bearer":
                return self._by_token(value.strip(), client)
            case "basic":
                return await self._by_password(value.strip(), client)
            case _:
                return None

    def _by_token(self, token: str, client: str) -> User | None:
        user = self._file.users().tokens.get(token_hash(token))
        if user is not None:
            return user  # found by its hash: a right token is never slowed
        keys = [f"address {client}"]
        self._slow(keys, _FREE[1:2])
        self._count(keys, "bearer token", client)
        return None

    async def _by_password(self, encoded: str, client: str) -> User | None:
        try:
            name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        if not colon:
            return None
        users = self._file.users()
        user, hashed = users.passwords.get(name, (None, users.nobodys))
        mark = hmac.new(self._key, f"{hashed}\0{password}".encode(), hashlib.sha256).digest()
        if user is not None and self._right.get(mark, -math.inf) > time.monotonic():
            return user
        keys = [f"both {client} {name}", f"address {client}", f"name {name}"]
        self._slow(keys, _FREE)
        self._count(keys)
        right = await self._verify(hashed, password)
        if user is None or not right:
            log.warning("sign-in failed by=%s from=%s", name, client or "-")
            return None
        for key in keys[:2]:
            self._throttle.succeeded(key)
        self._right[mark] = time.monotonic() + _REMEMBER
        if len(self._right) > _MAX_REMEMBERED:
            self._right.popitem(last=False)
        return user

    async def _verify(self, hashed: str, password: str) -> bool:
        if self._waiting >= _MAX_WAITING:
            raise _wait(1.0)
        self._waiting += 1
        try:
            async with self._hashing:
                return await run_in_threadpool(verify, hashed, password)
        finally:
            self._waiting -= 1

    def _slow(self, keys: list[str], free: tuple[int, ...]) -> None:
        seconds = max(self._throttle.wait(key, count) for key, count in zip(keys, free, strict=True))
        if seconds > 0:
            raise _wait(seconds)

    def _count(self, keys: list[str], what: str = "", client: str = "") -> None:
        for key in keys:
            self._throttle.failed(key)
        if what:
            log.warning("sign-in failed by=%s from=%s", what, client or "-")


def _wait(seconds: float) -> Refused:
    whole = math.ceil(seconds)
    return Refused(429, f"too many wrong attempts: try again in {whole} s.", {"Retry-After": str(whole)})


def _network(client: str) -> str:
    """What one attacker has: an IPv4 address, or a whole IPv6 network of 64 bits."""
    try:
        address = ip_address(client.partition("%")[0])
    except ValueError:
        return client
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or IPv6Address(int(address) >> 64 << 64))
    return client
