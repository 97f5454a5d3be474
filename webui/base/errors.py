"""A refused request, and the HTTP status for each error of Palermo."""

from starlette.exceptions import HTTPException

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


class Refused(HTTPException):
    """A refused request: the answer's status, and the reason for people."""

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, text, headers)


def status_of(error: PalermoError) -> int:
    """The HTTP status for an error of Palermo."""
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
