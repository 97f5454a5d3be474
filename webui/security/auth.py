"""HTTP authentication with passwords and bearer tokens from a users file, for programs and browsers.

Only the hash slows guessing down: two attempts at a time. Correct passwords are cached for ten
minutes as keyed hashes, because clients with basic authentication send the password with every request.
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

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from palermo.webui import tuning
from palermo.webui.security.user_file import UserFile, token_hash, verify
from palermo.webui.site import Refused, User

log = logging.getLogger("palermo.audit")

#: The ASGI scope keys under which the guard stores the client's address, and our host as seen by the browser.
CLIENT, HOST = "palermo.client", "palermo.host"

#: Maximum number of hashes computed at a time and waiting. Each takes 64 MiB.
_MAX_HASHING, _MAX_WAITING = 2, 32


class FileAuthentication:
    """Finds the user of a request in a users file; an `Authenticate`."""

    def __init__(self, path: str) -> None:
        """Raises SettingInvalid."""
        self._file = UserFile(path)
        self._key = secrets.token_bytes(32)
        #: When each cached password expires, by keyed hash.
        self._verified: OrderedDict[bytes, float] = OrderedDict()
        self._hashing = asyncio.Semaphore(_MAX_HASHING)
        self._waiting = 0

    async def __call__(self, request: Request) -> User | None:
        """Return the user, or None without a valid secret. Raises Refused (503) if too many attempts are waiting."""
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        client = str(request.scope.get(CLIENT, ""))
        match scheme.lower():
            case "bearer":
                return self._by_token(value.strip(), client)
            case "basic":
                return await self._by_basic(value.strip(), client)
            case _:
                return None

    def _by_token(self, token: str, client: str) -> User | None:
        user = self._file.users().tokens.get(token_hash(token))
        if user is None:
            log.warning("sign-in failed by=bearer token from=%s", client or "-")
        return user

    async def _by_basic(self, encoded: str, client: str) -> User | None:
        try:
            name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        return await self.by_password(name, password, client) if colon else None

    def with_password(self, name: str) -> tuple[User, str] | None:
        """Return the user with this name and their current password hash, if any."""
        return self._file.users().passwords.get(name)

    async def by_password(self, name: str, password: str, client: str) -> User | None:
        """Return the user with this name and password, or None. `client` is the address, for the log.

        Raises Refused (503) if too many attempts are waiting.
        """
        users = self._file.users()
        user, hashed = users.passwords.get(name, (None, users.dummy_hash))
        digest = hmac.new(self._key, f"{hashed}\0{password}".encode(), hashlib.sha256).digest()
        if user is not None and self._verified.get(digest, -math.inf) > time.monotonic():
            return user
        is_right = await self._verify(hashed, password)
        if user is None or not is_right:
            log.warning("sign-in failed by=%s from=%s", name, client or "-")
            return None
        self._verified[digest] = time.monotonic() + tuning.WINDOW
        if len(self._verified) > tuning.CACHED:
            self._verified.popitem(last=False)
        return user

    async def _verify(self, hashed: str, password: str) -> bool:
        if self._waiting >= _MAX_WAITING:
            raise Refused(503, "too many users are signing in right now. Try again.", {"Retry-After": "1"})
        self._waiting += 1
        try:
            async with self._hashing:
                return await run_in_threadpool(verify, hashed, password)
        finally:
            self._waiting -= 1
