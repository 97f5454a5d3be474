"""Sessions of browsers that have signed in. A signed cookie holds the whole session; the server keeps only ended ones.

So a session outlives a restart if the setting web_secret is given, and every process with that secret knows it.
Signing out ends a session in the process that is asked, and takes the cookie from the browser.
"""

import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from palermo.webui.security import tokens
from palermo.webui.site import Role, User, Visit

_COOKIE = "palermo_session"

#: The most ended sessions that are remembered. A new one replaces the oldest.
_MAX_ENDED = 10_000


@dataclass(frozen=True, slots=True)
class Session:
    """One signed-in browser."""

    id: str
    user: User
    #: A keyed hash of the password with which it began; "" if an OpenID provider signed the user in.
    stamp: str


class Sessions:
    """Begins sessions, finds them in requests, and ends them."""

    def __init__(self, secret: bytes, lifetime: float) -> None:
        """`lifetime` is in seconds."""
        self._secret = secret
        self._lifetime = lifetime
        #: The ids of sessions that were ended before their time, the oldest first.
        self._ended: OrderedDict[str, None] = OrderedDict()

    def stamp(self, password_hash: str) -> str:
        """The stamp of a session that this password begins. It changes with the password."""
        return tokens.signature(self._secret, "stamp", password_hash)

    def begin(self, request: Request, visit: Visit, response: Response, user: User, stamp: str = "") -> None:
        """Begin a session, in a cookie of this response."""
        fields = [secrets.token_urlsafe(12), user.name, user.role.word, time.time() + self._lifetime, stamp]
        value = tokens.sealed(self._secret, fields, "session")
        tokens.set_cookie(response, visit, _name(request), value, max_age=int(self._lifetime))

    def find(self, request: Request) -> Session | None:
        """The request's session; None if it has none, or one that has ended or that this secret did not sign."""
        found = tokens.unsealed(self._secret, request.cookies.get(_name(request), ""), "session")
        if found is None:
            return None
        id, name, role, ends, stamp = found
        if ends <= time.time() or id in self._ended:
            return None
        return Session(id, User(name, Role.named(role)), stamp)

    def end(self, request: Request, visit: Visit, response: Response) -> None:
        """End the request's session, if it has one, also for a copy of its cookie."""
        session = self.find(request)
        if session is not None:
            self._ended[session.id] = None
            if len(self._ended) > _MAX_ENDED:
                self._ended.popitem(last=False)
        response.delete_cookie(_name(request), path=visit.root or "/", httponly=True, samesite="lax")


def _name(request: Request) -> str:
    return tokens.cookie_of_port(_COOKIE, request.scope)
