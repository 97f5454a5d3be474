"""What every request passes before anything else sees it: the ASGI middleware around the application."""

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from palermo.webui import paths, tokens
from palermo.webui.errors import UNEXPECTED, answer, log
from palermo.webui.people import LOCAL
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


class Guard:
    """Checks a request, says whose it is, and answers for what goes wrong in it."""

    def __init__(self, app: ASGIApp, *, site: Site) -> None:
        self._app = app
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        root, path = paths.split(scope)
        scope = {**scope, **paths.moved(scope, root, path)}
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                self._set_headers(message, scope)
            await send(message)

        request = Request(scope, receive)
        scope[VISIT] = Visit(
            site=self._site,
            user=LOCAL,
            root=root,
            client=request.client.host if request.client else "",
            nonce=request.cookies.get(tokens.COOKIE, ""),
            secure=scope["scheme"] == "https",
        )
        try:
            await self._app(scope, receive, sending)
        except Exception:  # the edge of a request: whatever it is becomes an answer
            log.exception("request failed method=%s path=%s", scope["method"], path)
            if not started:
                await answer(request, 500, UNEXPECTED)(scope, receive, sending)

    def _set_headers(self, message: Message, scope: Scope) -> None:
        headers = MutableHeaders(raw=message.setdefault("headers", []))
        for name, value in HEADERS.items():
            headers.setdefault(name, value)
        kept = scope["path"].startswith(f"{scope['root_path']}/static/") and b"v=" in scope["query_string"]
        headers.setdefault("cache-control", "private, max-age=31536000, immutable" if kept else "no-store")
