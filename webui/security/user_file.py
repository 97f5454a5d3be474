"""The users file, with one line `name:role:secret` per user. Secrets are stored only as hashes.

    alice:admin:$argon2id$v=19$m=65536,t=3,p=4$…
    deploy:operator:sha256:9f86d081884c7d65…

A secret that begins with `$argon2` is the hash of a password for basic authentication. One that begins with `sha256:`
is the hash of a bearer token. Palermo generates tokens from 256 random bits, so they need no slow hash. Blank lines and
lines that start with # are ignored.
"""

import hashlib
import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from argon2 import PasswordHasher, extract_parameters
from argon2.exceptions import Argon2Error, InvalidHashError
from msgspec import Struct, field

from palermo.errors import SettingInvalid
from palermo.webui.site import Role, User

log = logging.getLogger("palermo.web")

#: Hashes with the library's defaults, the second choice of RFC 9106 with 64 MiB.
HASHER = PasswordHasher()

_SHA256 = "sha256:"


class Users(Struct, frozen=True):
    #: The user and the password's hash, by name.
    passwords: Mapping[str, tuple[User, str]] = field(default_factory=dict)
    #: The user, by the token's hash.
    tokens: Mapping[str, User] = field(default_factory=dict)
    #: A hash that matches no password, so that checking an unknown name takes as long as checking a known one.
    dummy_hash: str = ""


class UserFile:
    """A users file that is read again after a change."""

    def __init__(self, path: str) -> None:
        """Raises SettingInvalid for a file that can't be read or is invalid."""
        self._path = Path(path)
        self._stamp = self._stat()
        if self._path.stat().st_mode & 0o007:
            log.warning("all users of this machine can read the users file; run chmod 600 file=%s", self._path)
        self._users = read(self._path)

    def users(self) -> Users:
        """Return the file's current users; while the file is invalid, the previous ones."""
        try:
            stamp = self._stat()
            if stamp != self._stamp:
                self._stamp = stamp
                self._users = read(self._path)
        except SettingInvalid as error:
            log.error("cannot read the users file, keeping the users error=%s", error)
        return self._users

    def _stat(self) -> tuple[int, int, int]:
        try:
            found = os.stat(self._path)
        except OSError as error:
            raise SettingInvalid(f"users file {self._path} cannot be read: {error.strerror}.") from None
        return found.st_mtime_ns, found.st_size, found.st_ino


def read(path: Path) -> Users:
    """Read the users in a file. Raises SettingInvalid, which names the line but never its content."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingInvalid(f"users file {path} cannot be read: {getattr(error, 'strerror', 'not UTF-8')}.") from None
    passwords: dict[str, tuple[User, str]] = {}
    tokens: dict[str, User] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, role, secret = (part.strip() for part in (*line.split(":", 2), "", "")[:3])
        try:
            if not name:
                raise ValueError("the name is empty")
            user = User(name, Role.named(role))
            if secret.startswith(_SHA256) and len(secret) == len(_SHA256) + 64:
                tokens[secret.removeprefix(_SHA256).lower()] = user
            else:
                passwords[name] = (user, _hash(secret))
        except ValueError as error:
            raise SettingInvalid(
                f"users file {path}, line {number}: {error}. Write name:role:hash, as `palermo web-user` prints it."
            ) from None
    if not passwords and not tokens:
        raise SettingInvalid(f"users file {path} has no users. `palermo web-user NAME >> {path}` adds one.")
    return Users(passwords, tokens, _dummy_hash(passwords))


def password_line(name: str, role: Role, password: str, *, hasher: PasswordHasher = HASHER) -> str:
    return f"{name}:{role.word}:{hasher.hash(password)}"


def token_line(name: str, role: Role) -> tuple[str, str]:
    """Return a new bearer token, and the line for its user."""
    token = secrets.token_urlsafe(32)
    return token, f"{name}:{role.word}:{_SHA256}{token_hash(token)}"


def token_hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def verify(hashed: str, password: str) -> bool:
    """Whether a password matches a hash. Slow, and takes 64 MiB."""
    try:
        return HASHER.verify(hashed, password)
    except Argon2Error:
        return False


def _hash(secret: str) -> str:
    try:
        extract_parameters(secret)
    except InvalidHashError:
        raise ValueError("the third part is not a hash") from None
    return secret


def _dummy_hash(passwords: Mapping[str, tuple[User, str]]) -> str:
    """Return the hash of a random password, as expensive to check as the most expensive one in the file."""
    known = (extract_parameters(each) for _, each in passwords.values())
    dearest = max(known, key=lambda each: each.memory_cost * each.time_cost, default=None)
    hasher = HASHER if dearest is None else PasswordHasher.from_parameters(dearest)
    return hasher.hash(secrets.token_urlsafe())
