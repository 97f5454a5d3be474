"""The body of a request: read as a whole, in bounded time and memory, before any code uses it."""

import asyncio
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.types import Message, Receive

from palermo.webui.base.errors import Refused
from palermo.webui.security import tokens

#: The largest body, in bytes. Edited arguments and lists of ids fit; files are not accepted.
MAX_BODY = 2 * 1024 * 1024

#: The most fields of a form. A page of jobs to choose from has some hundreds.
MAX_FIELDS = 10_000

#: Seconds that a body may take to arrive.
TIMEOUT = 30.0

FORM, JSON = "application/x-www-form-urlencoded", "application/json"


async def read(receive: Receive, headers: Headers) -> bytes:
    """The whole body. Raises Refused: 413 if it is too large, 408 if it is too slow or broken off."""
    size = headers.get("content-length", "")
    if size.isdecimal() and int(size[:20]) > MAX_BODY:
        raise _too_large()
    body = bytearray()
    try:
        async with asyncio.timeout(TIMEOUT):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused(408, "the request was broken off.")
                body += message.get("body", b"")
                if len(body) > MAX_BODY:
                    raise _too_large()
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise Refused(408, f"the request did not arrive within {TIMEOUT:g} s.") from None


def replaying(body: bytes, receive: Receive) -> Receive:
    """A `receive` that first returns the body that was read, and then asks the real `receive`."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return waiting.pop() if waiting else await receive()

    return again


def media_type(headers: Headers) -> str:
    """The media type of the body, without parameters; "" without a Content-Type."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def check_type(headers: Headers, body: bytes, wanted: str) -> None:
    """Raises Refused (415) if the Content-Type is not the wanted one. A request without a body may leave it out."""
    given = media_type(headers)
    if given != wanted and (given or body):
        raise Refused(415, f"send {wanted}, not {given or 'a body without Content-Type'}.")


def token_in(headers: Headers, body: bytes) -> str:
    """The form token of the request, "" if it has none. Raises Refused (413) for a form with too many fields."""
    if tokens.HEADER in headers:
        return headers[tokens.HEADER]
    try:
        fields = parse_qsl(body.decode("latin-1"), max_num_fields=MAX_FIELDS)
    except ValueError:
        raise Refused(413, f"the form has more than {MAX_FIELDS:,} fields.") from None
    return next((value for name, value in fields if name == tokens.FIELD), "")


def _too_large() -> Refused:
    return Refused(413, f"the request's body is above {MAX_BODY:,} bytes.", {"Connection": "close"})
