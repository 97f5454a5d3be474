"""Access without users: from this machine only, as an administrator, and with the start-up token if one is set.

Requests from a proxy on this machine, and from its other users, also have a loopback address. The token keeps them out:
`palermo web` creates it on start and prints it as part of the link. Browsers keep it in a cookie, and programs send it
as a bearer token.
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

#: The link's parameter with the token.
PARAMETER = "token"

_USERS = (
    "Create a users file with `palermo web-user NAME >> users`, then set --users (web_users) or auth= of create_app:"
    " see docs/guides/web.md."
)


def new_token() -> str:
    return secrets.token_urlsafe(32)


class LocalAccess:
    """Admits only requests from this machine; an `Authenticate`."""

    def __init__(self, token: str = "") -> None:
        """Without a token, all programs and users of this machine are admitted, including a proxy that adds no
        headers.
        """
        self._token = token

    async def __call__(self, request: Request) -> User | Response:
        """Return the local administrator, or a redirect if the link with the token was followed. Raises Refused."""
        client = request.scope.get("client")
        if client and not is_near(client[0]):
            raise Refused(403, f"no users are configured, so these pages can only be opened on this machine. {_USERS}")
        header = forwarding_header(request.headers)
        if header:
            raise Refused(
                403,
                "no users are configured, so these pages can only be opened on this machine, but this request came"
                f" through a proxy (header {header}). {_USERS}",
            )
        if not self._token or is_bearer(request.headers.get("authorization", ""), self._token):
            return LOCAL
        if request.method in SAFE and self._is_right(request.query_params.get(PARAMETER, "")):
            return self._followed(request)
        if self._is_right(request.cookies.get(_cookie(request.scope), "")):
            return LOCAL
        headers = {"WWW-Authenticate": 'Bearer realm="Palermo"'}
        if request.method == "GET" and request.headers.get("sec-fetch-site") == "cross-site":
            # After following a link from another site, browsers don't send SameSite=Strict cookies. After a refresh
            # requested by our own response, they do.
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
        """Redirect to the same page without the token, so that it isn't in the history or a Referer."""
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
    """Return the requested URL without the token."""
    path = "/" + scope["raw_path"].decode("latin-1").lstrip("/")  # "//name" would be another site
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    query = urlencode([pair for pair in pairs if pair[0] != PARAMETER])
    return f"{path}?{query}" if query else path


def _cookie(scope: Scope) -> str:
    return cookie_of_port("palermo_token", scope)
