"""Sign-in to the pages with a users file, an OpenID provider, or both.

A browser signs in once and then has a session. Programs send a password or a bearer token from the file with each
request. A signed cookie contains the whole session, and the server stores only sessions that were ended. With the
`web_secret` setting, sessions survive a restart, and are valid in every process with that secret. Signing out ends the
session in the process that handles the request, and removes the cookie from the browser.
"""

import secrets
import time
from collections import OrderedDict

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from palermo.settings.settings import Settings
from palermo.webui import tuning
from palermo.webui.security import cookies
from palermo.webui.security.auth import CLIENT, FileAuthentication
from palermo.webui.security.openid import OpenIdProvider
from palermo.webui.site import Role, User, Visit

_COOKIE = "palermo_session"


class Session(Struct, frozen=True):
    id: str
    user: User
    #: A keyed hash of the password used to sign in; "" after a sign-in with an OpenID provider.
    stamp: str


class Sessions:
    """Starts, finds and ends sessions."""

    def __init__(self, secret: bytes, lifetime: float) -> None:
        """`lifetime` is in seconds."""
        self._secret = secret
        self._lifetime = lifetime
        #: The ids of sessions that were ended early, oldest first.
        self._ended: OrderedDict[str, None] = OrderedDict()

    def stamp(self, password_hash: str) -> str:
        """Return the stamp of sessions started with this password. It changes with the password."""
        return cookies.signature(self._secret, "stamp", password_hash)

    def begin(self, request: Request, visit: Visit, response: Response, user: User, stamp: str = "") -> None:
        """Start a session, in a cookie of this response."""
        fields = [secrets.token_urlsafe(12), user.name, user.role.word, time.time() + self._lifetime, stamp]
        value = cookies.sealed(self._secret, fields, "session")
        cookies.set_cookie(response, visit, _name(request), value, max_age=int(self._lifetime))

    def find(self, request: Request) -> Session | None:
        """Return the request's session; None if there is none, it has ended, or it wasn't signed with this secret."""
        found = cookies.unsealed(self._secret, request.cookies.get(_name(request), ""), "session")
        if found is None:
            return None
        id, name, role, ends, stamp = found
        if ends <= time.time() or id in self._ended:
            return None
        return Session(id, User(name, Role.named(role)), stamp)

    def end(self, request: Request, visit: Visit, response: Response) -> None:
        """End the request's session if it has one. Copies of its cookie become invalid too."""
        session = self.find(request)
        if session is not None:
            self._ended[session.id] = None
            if len(self._ended) > tuning.CACHED:
                self._ended.popitem(last=False)
        response.delete_cookie(_name(request), path=visit.root or "/", httponly=True, samesite="lax")


def _name(request: Request) -> str:
    return cookies.cookie_of_port(_COOKIE, request.scope)


class SignIn:
    """Finds the user of a request; an `Authenticate`."""

    def __init__(self, settings: Settings, secret: bytes) -> None:
        """Raises SettingInvalid."""
        self._users = FileAuthentication(settings.web_users) if settings.web_users else None
        self.provider = OpenIdProvider(settings, secret) if settings.web_oidc_issuer else None
        self.sessions = Sessions(secret, settings.web_session)

    @property
    def has_passwords(self) -> bool:
        """Whether there is a users file for signing in."""
        return self._users is not None

    async def __call__(self, request: Request) -> User | None:
        """Return the user, or None without a valid session or secret. Raises Refused (503)."""
        if "authorization" in request.headers:
            return await self._users(request) if self._users is not None else None
        session = self.sessions.find(request)
        if session is None:
            return None
        return self._known(session.user.name, session.stamp) if session.stamp else session.user

    async def by_password(self, request: Request, name: str, password: str) -> tuple[User, str] | None:
        """Return the user with this password, and the stamp for their session. Raises Refused (503)."""
        if self._users is None:
            return None
        user = await self._users.by_password(name, password, str(request.scope.get(CLIENT, "")))
        known = self._users.with_password(name)
        return (user, self.sessions.stamp(known[1])) if user is not None and known is not None else None

    def _known(self, name: str, stamp: str) -> User | None:
        """Return the user from the file with their current role; None if the user was removed or the password
        changed.
        """
        found = self._users.with_password(name) if self._users is not None else None
        return found[0] if found is not None and self.sessions.stamp(found[1]) == stamp else None
