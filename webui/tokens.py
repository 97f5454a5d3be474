"""The forms' token: proof that a form was rendered by us, for this user, in this browser.

Browsers of today say where a request comes from (palermo.webui.origin); this holds where they do not. Nothing is
kept here: the token is a keyed hash of a cookie that other sites can neither read nor send.
"""

import hashlib
import hmac
import secrets

from starlette.responses import Response

from palermo.webui.site import Visit

#: The field of a form, and the header of a script, that carry it.
FIELD, HEADER = "token", "x-palermo-token"

COOKIE = "palermo_browser"


def new_nonce() -> str:
    return secrets.token_urlsafe(18)


def form_token(visit: Visit, nonce: str) -> str:
    """The token for this user's forms in the browser that has this nonce."""
    return signature(visit.site.secret, "form", nonce, visit.user.name)


def valid(visit: Visit, given: str) -> bool:
    """Whether a form's token is this visit's."""
    return bool(visit.nonce) and hmac.compare_digest(form_token(visit, visit.nonce).encode(), given.encode())


def signature(secret: bytes, *parts: str) -> str:
    """A keyed hash of these texts, in their order."""
    message = b"".join(len(data).to_bytes(4) + data for data in (part.encode() for part in parts))
    return hmac.new(secret, message, hashlib.sha256).hexdigest()


def set_nonce(response: Response, visit: Visit, nonce: str) -> None:
    """Give the browser the cookie that its tokens are bound to, until it is closed."""
    set_cookie(response, visit, COOKIE, nonce)


def set_cookie(response: Response, visit: Visit, name: str, value: str, *, max_age: int | None = None) -> None:
    """A cookie for our own pages and no script; a link from elsewhere brings it along, a form does not."""
    response.set_cookie(
        name, value, path=visit.root or "/", max_age=max_age, secure=visit.secure, httponly=True, samesite="lax"
    )
