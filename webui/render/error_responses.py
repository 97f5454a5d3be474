"""Responses for errors: a page for people, {"error": …} under /api, with the status that fits the error."""

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from palermo.errors import PalermoError
from palermo.webui.base.errors import status_of
from palermo.webui.base.site import VISIT
from palermo.webui.render.rendering import page


def error_response(request: Request, status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    """The error response to a request."""
    if status == 503:
        headers = {"Retry-After": "3", **(headers or {})}
    if request.scope["path"].removeprefix(request.scope.get("root_path", "")).startswith("/api/"):
        return JSONResponse({"error": text}, status, headers)
    template = "error.html" if VISIT in request.scope else "refused.html"
    return page(request, template, status=status, headers=headers, error=text)


async def on_palermo_error(request: Request, error: Exception) -> Response:
    """The response to an exception that Palermo raised."""
    assert isinstance(error, PalermoError)
    return error_response(request, status_of(error), f"{type(error).__name__}: {error}")


async def on_http_error(request: Request, error: Exception) -> Response:
    """The response to an HTTP error, such as a refused request or an unknown address."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    return error_response(request, error.status_code, str(error.detail), headers)


async def on_invalid_request(request: Request, error: Exception) -> Response:
    """The response to a request with invalid values. One line says where each is and what is wrong with it."""
    assert isinstance(error, RequestValidationError)
    found = [f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in error.errors()[:10]]
    return error_response(request, 422, "; ".join(found) + ".")
