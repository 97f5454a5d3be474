"""The view for the web pages, which admits staff and passes requests to Palermo's application.

It is a plain view that works under WSGI and ASGI, with the project's sessions, users and middleware. Palermo's pages
protect their forms themselves, by origin and token, so they are exempt from Django's CSRF check.
"""

from typing import Any

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import NoReverseMatch, reverse
from django.utils.crypto import salted_hmac
from django.views.decorators.csrf import csrf_exempt

from palermo.client.client import Client
from palermo.contract.extras import extra
from palermo.contrib.asgi_bridge import Bridge, http_scope, raw_path_of
from palermo.contrib.django.configuration import configuration
from palermo.webui import Role, User, create_app

with extra("web", "the web pages"):
    from fastapi import FastAPI

#: The key in the ASGI scope for the user.
_USER = "palermo.contrib.user"


def make_pages(client: Client) -> FastAPI:
    """Create Palermo's pages. The view has already checked the host and the user."""
    # The same in all processes, without having to configure another secret.
    secret = client.settings.web_secret or salted_hmac("palermo.contrib.django", "web", algorithm="sha256").hexdigest()
    return create_app(client, auth=lambda request: request.scope[_USER], hosts=["*"], secret=secret)


bridge = Bridge(make_pages)


@csrf_exempt
def pages(request: HttpRequest, path: str) -> HttpResponse:
    """Serve one of Palermo's pages to staff. Other users get the admin's login page or 403."""
    user: Any = request.user
    if not user.is_authenticated and request.method in ("GET", "HEAD"):
        return redirect_to_login(request.get_full_path(), _login())
    if not (user.is_active and user.is_staff):
        raise PermissionDenied("Only staff can open these pages.")
    role = Role.ADMIN if user.is_superuser else Role.named(configuration().staff_role)
    scope = http_scope(
        method=request.method,
        root=request.path[: len(request.path) - len(path)].rstrip("/"),
        path=request.path,
        raw_path=_raw_path(request),
        query=request.META.get("QUERY_STRING", ""),
        # The host and scheme according to Django's settings, even behind proxies.
        headers=[
            *((name, value) for name, value in request.headers.items() if name != "Host"),
            ("host", request.get_host()),
        ],
        scheme=request.scheme,
        client=request.META.get("REMOTE_ADDR", ""),
    )
    scope[_USER] = User(user.get_username(), role)
    answer = bridge.call(scope, request.body)
    response = HttpResponse(answer.body, status=answer.status)
    del response.headers["Content-Type"]
    for name, value in answer.headers:
        if name.lower() == "set-cookie":
            response.cookies.load(value)
        else:
            response.headers[name] = value
    return response


def _raw_path(request: HttpRequest) -> str | bytes | None:
    """Return the percent-encoded path, which distinguishes slashes within names."""
    scope = getattr(request, "scope", None)
    if scope is not None:
        raw: bytes | None = scope.get("raw_path")
        return raw
    return raw_path_of(request.META)


def _login() -> str:
    try:
        return reverse("admin:login")
    except NoReverseMatch:
        return str(settings.LOGIN_URL)
