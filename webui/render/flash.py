"""Messages that tell once, on the next page, what a form did. A signed cookie carries them."""

import base64
import binascii
import hmac
import json
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from palermo.webui.base.site import Visit, visit_of
from palermo.webui.security.tokens import set_cookie, signature

COOKIE = "palermo_message"

#: Cookies hold 4 KiB.
_MAX_TEXT = 1_000


class Message(NamedTuple):
    level: str
    text: str


def write(response: Response, visit: Visit, text: str, level: str) -> None:
    """Show this text on the next page."""
    body = base64.urlsafe_b64encode(json.dumps([level, text[:_MAX_TEXT]]).encode()).decode()
    set_cookie(response, visit, COOKIE, f"{body}.{_sign(visit, body)}", max_age=60)


def read(request: Request) -> list[Message]:
    """The message of the last form. Messages without our signature are ignored."""
    visit = visit_of(request)
    body, _, signed = request.cookies.get(COOKIE, "").partition(".")
    if not body or not hmac.compare_digest(_sign(visit, body).encode(), signed.encode()):
        return []
    try:
        level, text = json.loads(base64.urlsafe_b64decode(body))
    except (ValueError, binascii.Error):
        return []
    return [Message(level, text)]


def clear(response: Response, visit: Visit) -> None:
    """Delete the message's cookie: this page shows it."""
    response.delete_cookie(COOKIE, path=visit.root or "/", httponly=True, samesite="lax")


def _sign(visit: Visit, body: str) -> str:
    return signature(visit.site.secret, "flash", visit.user.name, body)
