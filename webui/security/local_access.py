"""Access without users: only from this machine, as an administrator, and with the start-up token if one is set.

Requests of a proxy on this machine, and of its other users, also come from a loopback address. The token keeps them
out: `palermo web` creates one when it starts, and prints it in the link. A browser keeps it in a cookie, programs
send it as a bearer token.
"""

import hmac
import secrets
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Scope

from palermo.metrics import is_bearer
from palermo.webui.security.cookies import cookie_of_port
from palermo.webui.security.request import SAFE, forwarding_header, is_near
from palermo.webui.site import LOCAL, Refused, User

#: The parameter of the link that carries the token.
PARAMETER = "token"

_USERS = (
    "Create a users file with `palermo web-user NAME >> users`, then set --users (web_users) or auth= of create_app:"
    " see docs/guides/web.md."
)


def new_token() -> str:
    """A new token that cannot be guessed."""
    return secrets.token_urlsafe(32)


class LocalAccess:
    """Lets in requests from this machine only; an `Authenticate`."""

    def __init__(self, token: str = "") -> None:
        """Without a token, every program and user of this machine is admitted, including a proxy that adds no
        headers."""
        self._token = token

    async def __call__(self, request: Request) -> User | Response:
        """The local administrator, or a redirect if the request is the link with the token. Raises Refused."""
        client = request.scope.get("client")
        if client and not is_near(client[0]):
            raise Refused(403, f"without users these pages are for this machine only. {_USERS}")
        header = forwarding_header(request.headers)
        if header:
            raise Refused(
                403,
                f"this request came through a proxy (header {header}),"
                f" but without users these pages are for this machine only. {_USERS}",
            )
        if not self._token or is_bearer(request.headers.get("authorization", ""), self._token):
            return LOCAL
        if request.method in SAFE and self._is_right(request.query_params.get(PARAMETER, "")):
            return self._followed(request)
        if self._is_right(request.cookies.get(_cookie(request.scope), "")):
            return LOCAL
        headers = {"WWW-Authenticate": 'Bearer realm="Palermo"'}
        if request.method == "GET" and request.headers.get("sec-fetch-site") == "cross-site":
            # A browser that follows a link on another site sends no SameSite=Strict cookie. After a refresh that our
            # own answer asks for, it does.
            headers["Refresh"] = f"0; url={_here(request.scope)}"
        raise Refused(
            401,
            "open the link that this server printed when it started, which contains an access token. Programs send the"
            " token as `Authorization: Bearer TOKEN`.",
            headers,
        )

    def _is_right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _followed(self, request: Request) -> Response:
        """A redirect to the same page without the token, so that no history and no Referer holds the token."""
        scope = request.scope
        response = RedirectResponse(_here(scope), status_code=303)
        response.set_cookie(
            _cookie(scope),
            self._token,
            path=scope["root_path"] or "/",
            secure=scope["scheme"] == "https",
            httponly=True,
            samesite="strict",
        )
        return response


def _here(scope: Scope) -> str:
    """The requested address, without the token."""
    path = "/" + scope["raw_path"].decode("latin-1").lstrip("/")  # "//name" would mean another site
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    query = urlencode([pair for pair in pairs if pair[0] != PARAMETER])
    return f"{path}?{query}" if query else path


def _cookie(scope: Scope) -> str:
    return cookie_of_port("palermo_token", scope)
