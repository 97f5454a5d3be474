"""What every request passes before anything else sees it: the ASGI middleware around the application.

In this order: addresses that cannot be read, sizes, the host, where it comes from, whose it
is, its body, and the form's token. What is refused has been looked at no further.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import isawaitable, iscoroutinefunction

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from palermo.metrics.endpoint import is_bearer
from palermo.webui import auth, body, origin, paths, proxies, tokens
from palermo.webui.errors import UNEXPECTED, Refused, answer, log
from palermo.webui.people import LOCAL, Authenticate, User
from palermo.webui.site import VISIT, Site, Visit

#: No script or style but ours, nothing from elsewhere, nobody may frame us.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self';"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}

#: In bytes: a name of 255 bytes is 765 when encoded, and a page's filters some hundreds.
MAX_ADDRESS, MAX_HEADERS = 8_192, 65_536

#: For monitors, which know neither our names nor a password; it tells nothing but yes or no.
HEALTH = "/healthz"

#: For scrapers: whoever has the token of the setting metrics_token sees this page, by whatever name it is asked for,
#: and no other. Whoever may see the pages sees it too.
METRICS = "/metrics"

_CHALLENGE = {"WWW-Authenticate": 'Basic realm="Palermo", charset="UTF-8"'}


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """Who may come in, and by which way."""

    #: None: only this machine itself.
    authenticate: Authenticate | None = None
    #: Names that requests may be for, besides those of loopback.
    hosts: Sequence[str] = ()
    #: What a proxy takes from every path before we see it.
    prefix: str = ""
    #: Whether X-Forwarded-* is believed.
    trust_proxy: bool = False
    #: What opens `/metrics`; "" for nothing.
    metrics_token: str = ""


class Guard:
    """Checks a request, says whose it is, and answers for what goes wrong in it."""

    def __init__(self, app: ASGIApp, *, site: Site, doors: Doors) -> None:
        self._app = app
        self._site = site
        self._doors = doors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        scope = dict(scope)
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                _set_headers(message, scope)
            await send(message)

        request = Request(scope, receive)
        try:
            refusal = await self._refusal(request)
            if refusal is not None:
                await refusal(scope, receive, sending)
                return
            await self._app(scope, await self._checked_body(request, receive), sending)
        except HTTPException as error:
            # Connection: close, for whatever is left of the body is not read.
            headers = dict(error.headers or {})
            await answer(request, error.status_code, str(error.detail), headers)(scope, receive, sending)
        except Exception:  # the edge of a request: whatever it is becomes an answer
            log.exception("request failed method=%s path=%s", scope["method"], scope["path"])
            if not started:
                await answer(request, 500, UNEXPECTED)(scope, receive, sending)

    async def _refusal(self, request: Request) -> Response | None:
        """Where the request is for and from, and whose it is; a response that ends it here. Raises Refused."""
        scope, headers, doors = request.scope, request.headers, self._doors
        try:
            root, path = paths.split(scope)
        except paths.PathInvalid as error:
            raise Refused(400, f"{error}.") from None
        there = proxies.outside(scope, headers, prefix=doors.prefix, trusted=doors.trust_proxy)
        scope.update(paths.moved(root + there.prefix, path))
        scope.update({"scheme": there.scheme, auth.CLIENT: there.client})
        _check_sizes(scope)
        if path == HEALTH and scope["method"] in origin.SAFE:
            return None
        if path == METRICS and scope["method"] in origin.SAFE and self._is_scraper(headers):
            return None
        host = origin.host_of(there.host)
        if not host or not origin.allowed(host, doors.hosts):
            raise Refused(
                400, f"this is no address of these pages: {there.host[:100]!r}. Add it to the setting web_hosts."
            )
        if scope["method"] not in origin.SAFE and origin.is_cross_site(headers, there.host):
            log.warning("cross-site request refused from=%s path=%s", there.client or "-", path)
            raise Refused(403, "another site's page sent this, and only these pages may.")
        user = await self._user(request, there)
        if isinstance(user, Response):
            return user
        scope[VISIT] = Visit(
            site=self._site,
            user=user,
            root=scope["root_path"],
            client=there.client,
            nonce=request.cookies.get(tokens.COOKIE, ""),
            secure=there.scheme == "https",
        )
        return None

    def _is_scraper(self, headers: Headers) -> bool:
        token = self._doors.metrics_token
        return bool(token) and is_bearer(headers.get("authorization", ""), token)

    async def _user(self, request: Request, there: proxies.Outside) -> User | Response:
        authenticate = self._doors.authenticate
        if authenticate is None:
            server = request.scope.get("client")
            if not origin.is_near(there.client) or (server and not origin.is_near(server[0])):
                raise Refused(403, "without authentication these pages are for this machine alone: see docs/web.md.")
            return LOCAL
        if iscoroutinefunction(authenticate) or iscoroutinefunction(type(authenticate).__call__):
            found: object = authenticate(request)
        else:
            found = await run_in_threadpool(authenticate, request)
        if isawaitable(found):
            found = await found
        if found is None:
            raise Refused(401, "sign in with a name and a password, or a bearer token.", _CHALLENGE)
        if not isinstance(found, User | Response):
            raise TypeError(f"auth returned a {type(found).__name__}, not a User, a Response or None")
        return found

    async def _checked_body(self, request: Request, receive: Receive) -> Receive:
        """The body of what changes something, and proof that our own page sent it. Raises Refused."""
        if request.method in origin.SAFE:
            return receive
        headers = request.headers
        content = await body.read(receive, headers)
        if request.scope["path"].startswith(f"{request.scope['root_path']}/api/"):
            body.check_type(headers, content, body.JSON)
            return body.replaying(content, receive)
        body.check_type(headers, content, body.FORM)
        if not tokens.valid(request.scope[VISIT], body.token_in(headers, content)):
            raise Refused(403, "this page was too old, or your browser keeps no cookies. Reload it and try again.")
        return body.replaying(content, receive)


def _check_sizes(scope: Scope) -> None:
    if len(scope["raw_path"]) + len(scope.get("query_string", b"")) > MAX_ADDRESS:
        raise Refused(414, f"the address is longer than {MAX_ADDRESS:,} bytes.")
    if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADERS:
        raise Refused(431, f"the headers are above {MAX_HEADERS:,} bytes.")


def _set_headers(message: Message, scope: Scope) -> None:
    headers = MutableHeaders(raw=message.setdefault("headers", []))
    for name, value in HEADERS.items():
        headers.setdefault(name, value)
    inside = scope["path"].removeprefix(scope.get("root_path", ""))
    kept = inside.startswith("/static/") and b"v=" in scope["query_string"] and message["status"] == 200
    headers.setdefault("cache-control", "private, max-age=31536000, immutable" if kept else "no-store")
