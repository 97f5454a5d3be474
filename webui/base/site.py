"""The site, which all requests share, and the visit, which is one request."""

import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, cast

from fastapi import Depends
from starlette.requests import Request
from starlette.routing import BaseRoute

from palermo.client.actor import Actor
from palermo.client.client import Client
from palermo.inspector.inspector import Inspector
from palermo.webui.base.users import Role, User

#: The key of the ASGI scope under which the guard stores the visit for the handlers.
VISIT = "palermo.visit"


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One web application: the broker that it shows, and its settings."""

    client: Client
    inspector: Inspector
    version: str
    #: The key that signs form tokens and messages, which browsers carry.
    secret: bytes = field(repr=False)
    read_only: bool = False
    #: Patterns for the names of arguments whose values are shown to nobody: see masks.py.
    hidden: tuple[str, ...] = ()
    #: The routes of the pages by name: links are made from them.
    routes: Mapping[str, BaseRoute] = field(default_factory=dict, repr=False)
    #: Set when the server is told to stop. Streams end then.
    stopping: threading.Event = field(default_factory=threading.Event)
    _components: dict[type, Any] = field(default_factory=dict, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def component(self, kind: type[T], make: Callable[[], T]) -> T:
        """The site's one object of this class, such as a view or a cache. The first call makes it; it lives as long."""
        with self._lock:
            if kind not in self._components:
                self._components[kind] = make()
            return cast(T, self._components[kind])

    def existing(self, kind: type[T]) -> T | None:
        """The component of this class if it has been made."""
        return cast("T | None", self._components.get(kind))

    def remove(self, kind: type[T]) -> T | None:
        """The component of this class, which the site no longer has; None if it was never made."""
        with self._lock:
            return cast("T | None", self._components.pop(kind, None))

    @property
    def connected_to(self) -> str:
        """The broker's address for people, without user and password."""
        settings, address = self.client.settings, self.client.settings.address
        if not address.hosts:
            return str(address)
        hosts = ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in address.hosts)
        vhost = "" if address.vhost == "/" else f"/{address.vhost}"
        return f"{hosts}{vhost}/{settings.exchange}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One request, as actions and pages see it: its user, and the paths for its answers."""

    site: Site
    user: User
    #: The prefix of all our paths as the browser sees them: "" or "/palermo".
    root: str = ""
    #: The address that the request came from, "" where there is none.
    client: str = ""
    #: The nonce that this browser's form tokens are bound to; "" if it has none yet.
    nonce: str = ""
    #: Whether the browser uses https.
    secure: bool = False
    #: Authenticates the request again, for long answers: False if that gives no user or another role.
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
        """Whether this user may do here what needs this role."""
        return not self.site.read_only and self.user.role >= role


def visit_of(request: Request) -> Visit:
    """The visit of a request. Raises KeyError if the application runs without the guard."""
    visit: Visit = request.scope[VISIT]
    return visit


#: For handlers: `def overview(visit: Visiting) -> …`.
Visiting = Annotated[Visit, Depends(visit_of)]
