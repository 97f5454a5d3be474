"""What all requests share, and what one request is: the site and the visit."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import Request

from palermo.acting import Actor
from palermo.client import Client
from palermo.inspector import Inspector
from palermo.webui.people import Role, User

#: Where the guard leaves the visit for the handlers, in the ASGI scope.
VISIT = "palermo.visit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One application: the broker it looks at, and how it was set up."""

    client: Client
    inspector: Inspector
    version: str
    #: Signs what is handed to browsers: form tokens and messages.
    secret: bytes = field(repr=False)
    read_only: bool = False
    #: Patterns for the names of arguments that nobody is shown: see redact.py.
    hidden: tuple[str, ...] = ()
    #: Set once the server has been told to stop: streams end then.
    stopping: threading.Event = field(default_factory=threading.Event)
    #: What the modules keep for as long as the site lives, by name: views, caches.
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def connected_to(self) -> str:
        """The broker, for people: without user and password."""
        settings, address = self.client.settings, self.client.settings.address
        if not address.hosts:
            return str(address)
        hosts = ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in address.hosts)
        vhost = "" if address.vhost == "/" else f"/{address.vhost}"
        return f"{hosts}{vhost}/{settings.exchange}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One request, as far as actions and pages care: whose it is, and where its answers lead."""

    site: Site
    user: User
    #: What stands before every path of ours, as the browser sees it: "" or "/palermo".
    root: str = ""
    #: The address it came from, "" where there is none.
    client: str = ""
    #: What this browser's form tokens are bound to; "" if it has none yet.
    nonce: str = ""
    #: Whether the browser came by https.
    secure: bool = False

    @property
    def actor(self) -> Actor:
        """Who this is, for the journal."""
        return Actor(self.user.name, "web")

    @property
    def inspector(self) -> Inspector:
        """The site's, on behalf of this user."""
        return self.site.inspector.on_behalf_of(self.actor)

    def may(self, role: Role) -> bool:
        """Whether this user may do what takes this role, here."""
        return not self.site.read_only and self.user.role >= role


def visit_of(request: Request) -> Visit:
    """The visit that a request is. Raises KeyError where the guard was left out."""
    visit: Visit = request.scope[VISIT]
    return visit


#: For handlers: `def overview(visit: Visiting) -> …`.
Visiting = Annotated[Visit, Depends(visit_of)]

Context = Mapping[str, Any]
