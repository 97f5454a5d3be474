"""The guard: ASGI middleware that checks every request before the application sees it.

It checks the URL's encoding, sizes, the host, the origin, the user and the body, in this order. The first failed check
ends the request.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from urllib.parse import urlencode

from msgspec import Struct
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from palermo.metrics import is_bearer
from palermo.webui.security import auth
from palermo.webui.security.request import (
    FORM,
    JSON,
    SAFE,
    check_fields,
    check_media_type,
    forwarded_request,
    host_of,
    is_allowed_host,
    is_cross_site,
    moved,
    read_body,
    replayed,
    split_path,
)
from palermo.webui.security.sign_in import SignIn
from palermo.webui.site import NOBODY, VISIT, Authenticate, Refused, Site, User, Visit

log = logging.getLogger("palermo.web")

_UNEXPECTED = "an unexpected error occurred. See the server's log."

#: Creates the response to a refused request, from the request, status, text and headers.
ErrorResponse = Callable[[Request, int, str, dict[str, str] | None], Response]

#: Only our own pages may provide scripts, styles and data, or frame ours.
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

#: In bytes. An encoded name takes up to 765 bytes, and a page's filter some hundreds.
MAX_ADDRESS, MAX_HEADERS = 8_192, 65_536

#: For monitors, which have neither a host name nor a password. It only answers yes or no.
HEALTH = "/healthz"

#: For scrapers. The token in the `metrics_token` setting gives access to this page only, under any host name. Users
#: with access to the pages have access too.
METRICS = "/metrics"

#: The sign-in pages, which need no user.
SIGN_IN = "/sign-in"

_CHALLENGE = {"WWW-Authenticate": 'Basic realm="Palermo", charset="UTF-8"'}


class AccessRules(Struct, frozen=True, kw_only=True):
    """Who may send requests to the pages, and from where."""

    authenticate: Authenticate
    #: The accepted host names, in addition to loopback names.
    hosts: Sequence[str] = ()
    #: The prefix that a proxy removes from every path.
    prefix: str = ""
    #: Whether to trust X-Forwarded-* headers.
    trust_proxy: bool = False
    #: The token for `/metrics`, or "".
    metrics_token: str = ""


class Guard:
    """Checks a request, finds its user, and handles errors."""

    def __init__(self, app: ASGIApp, *, site: Site, rules: AccessRules, error_response: ErrorResponse) -> None:
        self._app = app
        self._site = site
        self._rules = rules
        self._error_response = error_response

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
            # May contain Connection: close, because the rest of the body isn't read.
            headers = dict(error.headers or {})
            response = self._error_response(request, error.status_code, str(error.detail), headers)
            await response(scope, receive, sending)
        except Exception:  # every error must become a response
            log.exception("request failed method=%s path=%s", scope["method"], scope["path"])
            if not started:
                await self._error_response(request, 500, _UNEXPECTED, None)(scope, receive, sending)

    async def _refusal(self, request: Request) -> Response | None:
        """Check the request and set its visit. Returns a response to end it here, or None. Raises Refused."""
        scope, headers, rules = request.scope, request.headers, self._rules
        root, path = split_path(scope)
        forwarded = forwarded_request(scope, headers, prefix=rules.prefix, trusted=rules.trust_proxy)
        scope.update(moved(root + forwarded.prefix, path))
        scope.update({"scheme": forwarded.scheme, auth.CLIENT: forwarded.client, auth.HOST: forwarded.host})
        _check_sizes(scope)
        if path == HEALTH and scope["method"] in SAFE:
            return None
        if path == METRICS and scope["method"] in SAFE and self._is_scraper(headers):
            return None
        host = host_of(forwarded.host)
        if not host or not is_allowed_host(host, rules.hosts):
            raise Refused(400, f"the host {forwarded.host[:100]!r} is not allowed. Add it to the web_hosts setting.")
        if scope["method"] not in SAFE and is_cross_site(headers, forwarded.host):
            log.warning("cross-site request refused from=%s path=%s", forwarded.client or "-", path)
            raise Refused(
                403,
                "this request may come from another site, because its Sec-Fetch-Site or Origin header doesn't match"
                f" {forwarded.host[:100]!r}. If you use a proxy, let it pass the Host header unchanged.",
            )
        user = NOBODY if self._is_open(path) else await self._user(request)
        if isinstance(user, Response):
            return user
        scope[VISIT] = Visit(
            site=self._site,
            user=user,
            root=scope["root_path"],
            client=forwarded.client,
            secure=forwarded.scheme == "https",
            is_current=partial(self._is_still, request, user),
        )
        return None

    def _is_open(self, path: str) -> bool:
        """Whether this is a sign-in page or a packaged file, which such a page needs."""
        return self._site.existing(SignIn) is not None and path.startswith((SIGN_IN, "/static/"))

    def _is_scraper(self, headers: Headers) -> bool:
        token = self._rules.metrics_token
        return bool(token) and is_bearer(headers.get("authorization", ""), token)

    async def _is_still(self, request: Request, user: User) -> bool:
        try:
            return await self._user(request) == user
        except HTTPException:
            return False

    async def _user(self, request: Request) -> User | Response:
        authenticate = self._rules.authenticate
        if iscoroutinefunction(authenticate) or iscoroutinefunction(type(authenticate).__call__):
            found: object = authenticate(request)
        else:
            found = await run_in_threadpool(authenticate, request)
        if isawaitable(found):
            found = await found
        if found is None:
            sign_in = self._site.existing(SignIn)
            signs_in = sign_in is not None
            if signs_in and _is_navigation(request):
                return _to_sign_in(request.scope)
            if sign_in is not None and not sign_in.has_passwords:
                raise Refused(401, "sign in with a browser. To give programs access, create a users file (web_users).")
            # Browsers react to the challenge with their own dialog, but there is a sign-in form.
            challenge = None if signs_in and "sec-fetch-mode" in request.headers else _CHALLENGE
            raise Refused(401, "sign in with a name and a password, or a bearer token.", challenge)
        if not isinstance(found, User | Response):
            raise TypeError(f"auth returned a {type(found).__name__}, not a User, a Response or None")
        return found

    async def _checked_body(self, request: Request, receive: Receive) -> Receive:
        """Read and check the body of a request that makes changes. Raises Refused."""
        if request.method in SAFE:
            return receive
        headers = request.headers
        content = await read_body(receive, headers)
        if request.scope["path"].startswith(f"{request.scope['root_path']}/api/"):
            check_media_type(headers, content, JSON)
            return replayed(content, receive)
        check_media_type(headers, content, FORM)
        check_fields(content)
        return replayed(content, receive)


def _is_navigation(request: Request) -> bool:
    """Whether a browser requests a page to display. Programs, scripts and API requests get 401 instead of a
    redirect.
    """
    headers = request.headers
    wants_page = headers.get("sec-fetch-mode", "navigate") == "navigate" and "text/html" in headers.get("accept", "")
    return request.method == "GET" and wants_page and "authorization" not in headers


def _to_sign_in(scope: Scope) -> Response:
    query = scope["query_string"].decode("latin-1")
    then = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
    return RedirectResponse(f"{scope['root_path']}{SIGN_IN}?{urlencode({'then': then})}", status_code=303)


def _check_sizes(scope: Scope) -> None:
    if len(scope["raw_path"]) + len(scope.get("query_string", b"")) > MAX_ADDRESS:
        raise Refused(414, f"the address is too long; the maximum is {MAX_ADDRESS:,} bytes.")
    if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADERS:
        raise Refused(431, f"the headers are too large; the maximum is {MAX_HEADERS:,} bytes.")


def _set_headers(message: Message, scope: Scope) -> None:
    headers = MutableHeaders(raw=message.setdefault("headers", []))
    for name, value in HEADERS.items():
        headers.setdefault(name, value)
    inside = scope["path"].removeprefix(scope.get("root_path", ""))
    kept = inside.startswith("/static/") and b"v=" in scope["query_string"] and message["status"] == 200
    headers.setdefault("cache-control", "private, max-age=31536000, immutable" if kept else "no-store")
