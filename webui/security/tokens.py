"""The forms' token: proof that we rendered a form for this user in this browser.

Current browsers say where a request comes from (palermo.webui.security.request); the token protects the others.
Nothing is stored here: the token is a keyed hash of a cookie that other sites can neither read nor send.
"""

import base64
import binascii
import hashlib
import hmac
import json
from typing import Any

from starlette.responses import Response
from starlette.types import Scope

from palermo.webui.site import Visit

#: The form field and the header (of scripts) that carry the token.
FIELD, HEADER = "token", "x-palermo-token"

#: The cookie with the nonce that the browser's tokens are bound to.
COOKIE = "palermo_browser"


def form_token(visit: Visit, nonce: str) -> str:
    """The token for this user's forms in the browser with this nonce."""
    return signature(visit.site.secret, "form", nonce, visit.user.name)


def valid(visit: Visit, given: str) -> bool:
    """Whether a form's token is valid for this visit."""
    return bool(visit.nonce) and hmac.compare_digest(form_token(visit, visit.nonce).encode(), given.encode())


def signature(secret: bytes, *parts: str) -> str:
    """A keyed hash of these texts in this order."""
    message = b"".join(len(data).to_bytes(4) + data for data in (part.encode() for part in parts))
    return hmac.new(secret, message, hashlib.sha256).hexdigest()


def sealed(secret: bytes, value: Any, *purpose: str) -> str:
    """A value for a cookie, as JSON, signed for this purpose. The browser can read it and cannot change it."""
    # Not as ASCII, which makes six bytes of a letter that has two.
    body = base64.urlsafe_b64encode(json.dumps(value, ensure_ascii=False).encode()).decode()
    return f"{body}.{signature(secret, *purpose, body)}"


def unsealed(secret: bytes, text: str, *purpose: str) -> Any:
    """The value of such a cookie; None without our signature for this purpose."""
    body, _, signed = text.partition(".")
    if not body or not hmac.compare_digest(signature(secret, *purpose, body).encode(), signed.encode()):
        return None
    try:
        return json.loads(base64.urlsafe_b64decode(body))
    except (ValueError, binascii.Error):
        return None


def cookie_of_port(name: str, scope: Scope) -> str:
    """A cookie's name with the port in it: browsers send the cookies of one port to all ports of a machine."""
    server = scope.get("server")
    return f"{name}_{server[1]}" if server and server[1] else name


def set_cookie(response: Response, visit: Visit, name: str, value: str, *, max_age: int | None = None) -> None:
    """Set a cookie for our own pages, which scripts cannot read.

    A browser sends it when the user follows a link on another site, but not with another site's form.
    """
    response.set_cookie(
        name, value, path=visit.root or "/", max_age=max_age, secure=visit.secure, httponly=True, samesite="lax"
    )
