"""What goes wrong, as an answer: a page for people, {"error": …} under /api, and whose fault it is by status."""

import logging

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from palermo.errors import (
    BodyTooLarge,
    BrokerError,
    HeadersTooLarge,
    NotBrowsable,
    NotFound,
    PalermoError,
    ResultError,
    SerializationError,
    UsageError,
)
from palermo.webui.rendering import page
from palermo.webui.site import VISIT

log = logging.getLogger("palermo.web")

UNEXPECTED = "something unexpected went wrong here. The server's log tells more."


class Refused(HTTPException):
    """An answer that is no: its status, and why, for people."""

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, text, headers)


def status_of(error: PalermoError) -> int:
    """The status that an error of Palermo's is answered with."""
    match error:
        case NotFound():
            return 404
        case NotBrowsable() | ResultError():
            return 409
        case BodyTooLarge() | HeadersTooLarge():
            return 413
        case BrokerError():
            return 503
        case UsageError() | SerializationError():
            return 422
        case _:
            return 500


def answer(request: Request, status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    """The answer to a request that is not done."""
    if status == 503:
        headers = {"Retry-After": "3", **(headers or {})}
    if request.scope["path"].removeprefix(request.scope.get("root_path", "")).startswith("/api/"):
        return JSONResponse({"error": text}, status, headers)
    template = "error.html" if VISIT in request.scope else "refused.html"
    return page(request, template, status=status, headers=headers, error=text)


async def on_palermo_error(request: Request, error: Exception) -> Response:
    """What Palermo raised, as an answer."""
    assert isinstance(error, PalermoError)
    return answer(request, status_of(error), f"{type(error).__name__}: {error}")
