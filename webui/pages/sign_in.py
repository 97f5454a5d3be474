"""The page where users sign in, by password or an OpenID provider, and the form to sign out."""

import logging
from typing import Annotated

from fastapi import Form, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from palermo.webui.render.rendering import origin, page, path
from palermo.webui.security.openid import OpenIdProvider
from palermo.webui.security.sign_in import SignIn
from palermo.webui.site import Refused, User, Visit, Visiting
from palermo.webui.threads import Router

log = logging.getLogger("palermo.audit")

router = Router()

#: The path on this site that the user requested.
Then = Annotated[str, Query(max_length=4_000)]


@router.get("/sign-in", name="sign_in")
def sign_in(request: Request, visit: Visiting, then: Then = "") -> Response:
    """Show the form for name and password, and the link to the OpenID provider, as available."""
    return _form(request, visit, then)


@router.post("/sign-in", name="sign_in_by_password")
async def by_password(
    request: Request,
    visit: Visiting,
    name: Annotated[str, Form(max_length=200)] = "",
    password: Annotated[str, Form(max_length=1_000)] = "",
    then: Annotated[str, Form(max_length=4_000)] = "",
) -> Response:
    """Start a session for the user with this password."""
    signing = _signing(visit)
    try:
        found = await signing.by_password(request, name, password)
    except Refused as refused:
        return _form(request, visit, then, name=name, error=str(refused.detail), status=refused.status_code)
    if found is None:
        return _form(request, visit, then, name=name, error="wrong name or password.", status=401)
    return _signed_in(request, visit, *found, then)


@router.get("/sign-in/openid", name="openid")
async def openid(request: Request, visit: Visiting, then: Then = "") -> Response:
    """Redirect to the OpenID provider."""
    return await _provider(visit).redirect_to_provider(request, visit, _back(request), then)


@router.get("/sign-in/openid/back", name="openid_back")
async def openid_back(request: Request, visit: Visiting) -> Response:
    """Start a session for the user who returns from the OpenID provider."""
    user, then = await _provider(visit).user(request)
    return _signed_in(request, visit, user, "", then)


@router.post("/sign-out", name="sign_out")
def sign_out(request: Request, visit: Visiting) -> Response:
    """End this browser's session."""
    response = RedirectResponse(path(request, "sign_in"), status_code=303)
    _signing(visit).sessions.end(request, visit, response)
    log.info("signed out by=%s from=%s", visit.user.name, visit.client or "-")
    return response


def _form(request: Request, visit: Visit, then: str, *, name: str = "", error: str = "", status: int = 200) -> Response:
    signing = _signing(visit)
    provider = signing.provider.issuer.partition("://")[2] if signing.provider else ""
    return page(
        request,
        "sign_in.html",
        status=status,
        then=then,
        name=name,
        error=error,
        has_passwords=signing.has_passwords,
        provider=provider,
    )


def _signed_in(request: Request, visit: Visit, user: User, stamp: str, then: str) -> Response:
    inside = then.startswith(f"{visit.root}/") and not then.startswith(("//", "/\\"))
    response = RedirectResponse(then if inside else path(request, "overview"), status_code=303)
    _signing(visit).sessions.begin(request, visit, response, user, stamp)
    log.info("signed in by=%s role=%s from=%s", user.name, user.role.word, visit.client or "-")
    return response


def _back(request: Request) -> str:
    """Return the address to which the provider redirects; it must be registered there."""
    return origin(request) + path(request, "openid_back")


def _signing(visit: Visit) -> SignIn:
    signing = visit.site.existing(SignIn)
    if signing is None:
        raise Refused(404, "these pages have no sign-in.")
    return signing


def _provider(visit: Visit) -> OpenIdProvider:
    provider = _signing(visit).provider
    if provider is None:
        raise Refused(404, "no OpenID provider is configured. See web_oidc_issuer in docs/guides/web.md.")
    return provider
