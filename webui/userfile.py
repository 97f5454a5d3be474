"""The file of users: a line each, `name:role:secret`, with secrets that cannot be read back.

    alice:admin:$argon2id$v=19$m=65536,t=3,p=4$…
    deploy:operator:sha256:9f86d081884c7d65…

A secret that begins with `$argon2` is a password's hash, for basic authentication. One with
`sha256:` is a bearer token's: tokens are made by us with 256 bits of chance, which no
search finds, and so need no slow hash. Blank lines and those with # count for nothing.
"""

import hashlib
import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from argon2 import Parameters, PasswordHasher, extract_parameters
from argon2.exceptions import Argon2Error, InvalidHashError

from palermo.errors import SettingInvalid
from palermo.webui.people import Role, User

log = logging.getLogger("palermo.web")

#: How new hashes are made: the library's choice, RFC 9106's second, with 64 MiB.
HASHER = PasswordHasher()

_SHA256 = "sha256:"


@dataclass(frozen=True, slots=True)
class Users:
    """Everybody in the file."""

    #: By name: the user, and a hash of the password.
    passwords: Mapping[str, tuple[User, str]] = field(default_factory=dict)
    #: By a token's hash.
    tokens: Mapping[str, User] = field(default_factory=dict)
    #: A hash that fits no password: a name that is not there must take as long as one that is.
    nobodys: str = ""


class UserFile:
    """A file of users, read again when it was changed."""

    def __init__(self, path: str) -> None:
        """Raises SettingInvalid for a file that cannot be read or understood."""
        self._path = Path(path)
        self._stamp = self._stat()
        self._users = read(self._path)

    def users(self) -> Users:
        """Who is in it now; while it cannot be understood, who was before."""
        try:
            stamp = self._stat()
            if stamp != self._stamp:
                self._stamp = stamp
                self._users = read(self._path)
        except SettingInvalid as error:
            log.error("users unchanged error=%s", error)
        return self._users

    def _stat(self) -> tuple[int, int, int]:
        try:
            found = os.stat(self._path)
        except OSError as error:
            raise SettingInvalid(f"users file {self._path} cannot be read: {error.strerror}.") from None
        return found.st_mtime_ns, found.st_size, found.st_ino


def read(path: Path) -> Users:
    """The users in a file. Raises SettingInvalid naming the line, and never what is in it."""
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
            user = User(_checked(name), Role.named(role))
            if secret.startswith(_SHA256) and len(secret) == len(_SHA256) + 64:
                tokens[secret.removeprefix(_SHA256).lower()] = user
            else:
                passwords[name] = (user, _hash(secret))
        except ValueError as error:
            raise SettingInvalid(
                f"users file {path}, line {number}: {error}. Write name:role:hash; `palermo web-user` makes such lines."
            ) from None
    if not passwords and not tokens:
        raise SettingInvalid(f"users file {path} holds no user. `palermo web-user NAME >> {path}` adds one.")
    return Users(passwords, tokens, _nobodys(passwords))


def password_line(name: str, role: Role, password: str, *, hasher: PasswordHasher = HASHER) -> str:
    """The line for somebody with a password."""
    return f"{name}:{role.word}:{hasher.hash(password)}"


def token_line(name: str, role: Role) -> tuple[str, str]:
    """A new bearer token, and the line for it."""
    token = secrets.token_urlsafe(32)
    return token, f"{name}:{role.word}:{_SHA256}{token_hash(token)}"


def token_hash(token: str) -> str:
    """What the file holds of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def verify(hashed: str, password: str) -> bool:
    """Whether a password is the one that was hashed; slow, and takes 64 MiB."""
    try:
        return HASHER.verify(hashed, password)
    except Argon2Error:
        return False


def _checked(name: str) -> str:
    if not name:
        raise ValueError("the name is empty")
    return name


def _hash(secret: str) -> str:
    try:
        extract_parameters(secret)
    except InvalidHashError:
        raise ValueError("the third part is no hash") from None
    return secret


def _nobodys(passwords: Mapping[str, tuple[User, str]]) -> str:
    """A hash of nobody's password, as dear as the dearest in the file."""
    dearest = max((extract_parameters(each) for _, each in passwords.values()), key=_cost, default=None)
    hasher = HASHER if dearest is None else PasswordHasher.from_parameters(dearest)
    return hasher.hash(secrets.token_urlsafe())


def _cost(parameters: Parameters) -> int:
    return parameters.memory_cost * parameters.time_cost
