"""Signed cookie values, which the browser can read but not change."""

import base64
import binascii
import hashlib
import hmac
import json
from typing import Any

from starlette.responses import Response
from starlette.types import Scope

from palermo.webui.site import Visit


def signature(secret: bytes, *parts: str) -> str:
    """Return a keyed hash of these texts in this order."""
    message = b"".join(len(data).to_bytes(4) + data for data in (part.encode() for part in parts))
    return hmac.new(secret, message, hashlib.sha256).hexdigest()


def sealed(secret: bytes, value: Any, *purpose: str) -> str:
    """Return a value for a cookie, as JSON signed for this purpose. It isn't encrypted."""
    # Escaping to ASCII would turn a letter of two bytes into six.
    body = base64.urlsafe_b64encode(json.dumps(value, ensure_ascii=False).encode()).decode()
    return f"{body}.{signature(secret, *purpose, body)}"


def unsealed(secret: bytes, text: str, *purpose: str) -> Any:
    """Return the value of such a cookie; None unless it has our signature for this purpose."""
    body, _, signed = text.partition(".")
    if not body or not hmac.compare_digest(signature(secret, *purpose, body).encode(), signed.encode()):
        return None
    try:
        return json.loads(base64.urlsafe_b64decode(body))
    except (ValueError, binascii.Error):
        return None


def cookie_of_port(name: str, scope: Scope) -> str:
    """Return a cookie's name with the port, because browsers send cookies to all ports of a host."""
    server = scope.get("server")
    return f"{name}_{server[1]}" if server and server[1] else name


def set_cookie(response: Response, visit: Visit, name: str, value: str, *, max_age: int | None = None) -> None:
    """Set a cookie for our own pages, which scripts can't read.

    Browsers send it when the user follows a link from another site, but not with another site's form.
    """
    response.set_cookie(
        name, value, path=visit.root or "/", max_age=max_age, secure=visit.secure, httponly=True, samesite="lax"
    )
