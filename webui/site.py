"""The site shared by all requests, the visit (one request), its user and roles, and the error for refused requests."""

import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Any, TypeVar, cast

from fastapi import Depends
from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from palermo.client.actor import Actor
from palermo.client.client import Client
from palermo.inspector.inspector import Inspector

#: The ASGI scope key under which the guard stores the visit for handlers.
VISIT = "palermo.visit"

T = TypeVar("T")


class Role(IntEnum):
    """The rights of a user. Each role includes the rights of those before it."""

    #: View everything.
    VIEWER = 1
    #: Enqueue, requeue and discard jobs; pause and resume queues; quiet and resume workers.
    OPERATOR = 2
    #: Purge and delete queues; stop and kill workers.
    ADMIN = 3

    @property
    def word(self) -> str:
        """The role's name in settings, pages and the audit log."""
        return self.name.lower()

    @classmethod
    def named(cls, word: str) -> "Role":
        """Return the role with this name. Raises ValueError."""
        try:
            return cls[word.strip().upper()]
        except KeyError:
            known = ", ".join(role.word for role in cls)
            raise ValueError(f"{word!r} is not a role; the roles are {known}") from None


class User(Struct, frozen=True):
    """A user, as named by the authentication."""

    name: str
    role: Role = Role.VIEWER


#: Returns the user of a request; None for no user, which is answered with 401; or a response, such as a redirect to a
#: login page. May be a coroutine function.
Authenticate = Callable[[Request], User | Response | Awaitable[User | Response | None] | None]

#: The user of all requests without authentication, which are admitted only from this machine.
LOCAL = User("local", Role.ADMIN)


#: The user of the sign-in pages.
NOBODY = User("")


def ANYONE(request: Request) -> User:
    """For `create_app(auth=ANYONE)`: every request is an administrator's, because a server in front controls access."""
    return User("anyone", Role.ADMIN)


class Refused(HTTPException):
    """A refused request, with the response's status and the displayed reason."""

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, text, headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A web application: the displayed broker, and the settings."""

    client: Client
    inspector: Inspector
    version: str
    #: The key that signs cookies.
    secret: bytes = field(repr=False)
    read_only: bool = False
    #: The patterns of hidden argument names: see palermo.jobs.redaction.
    hidden: tuple[str, ...] = ()
    #: The routes of the pages by name, for links.
    routes: Mapping[str, BaseRoute] = field(default_factory=dict, repr=False)
    #: Set when the server stops, which ends streams.
    stopping: threading.Event = field(default_factory=threading.Event)
    _components: dict[type | str, Any] = field(default_factory=dict, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def component(self, key: type[T] | str, make: Callable[[], T]) -> T:
        """Return the site's only object of this class or name, such as a view or a cache, created on first use."""
        with self._lock:
            if key not in self._components:
                self._components[key] = make()
            return cast(T, self._components[key])

    def existing(self, kind: type[T]) -> T | None:
        """Return the component of this class if it exists."""
        return cast("T | None", self._components.get(kind))

    def close(self) -> None:
        """Close the components of a site that is ending. A later request creates them again."""
        with self._lock:
            closing = [self._components.pop(key) for key in list(self._components) if hasattr(key, "close")]
        for each in closing:
            each.close()

    @property
    def connected_to(self) -> str:
        """The broker's URL for display, without user or password."""
        settings, address = self.client.settings, self.client.settings.address
        if not address.hosts:
            return str(address)
        hosts = ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in address.hosts)
        vhost = "" if address.vhost == "/" else f"/{address.vhost}"
        return f"{hosts}{vhost}/{settings.exchange}"


class Visit(Struct, frozen=True, kw_only=True):
    """A request, as seen by actions and pages: its user, and the paths for its response."""

    site: Site
    user: User
    #: The prefix of all our paths as seen by the browser: "" or "/palermo".
    root: str = ""
    #: The client's address, or "".
    client: str = ""
    #: Whether the browser uses https.
    secure: bool = False
    #: Authenticates the request again, for long responses. Returns False if there is no user or the role has changed.
    is_current: Callable[[], Awaitable[bool]]

    @property
    def actor(self) -> Actor:
        """The user, for the journal."""
        return Actor(self.user.name, "web")

    @property
    def inspector(self) -> Inspector:
        """The site's inspector, acting on behalf of this user."""
        return self.site.inspector.on_behalf_of(self.actor)

    def may(self, role: Role) -> bool:
        """Whether this user may perform actions of this role here."""
        return not self.site.read_only and self.user.role >= role


def visit_of(request: Request) -> Visit:
    """Return the visit of a request. Raises KeyError if the application runs without the guard."""
    visit: Visit = request.scope[VISIT]
    return visit


#: For handlers: `def overview(visit: Visiting) -> …`.
Visiting = Annotated[Visit, Depends(visit_of)]
