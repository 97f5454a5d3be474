"""A refused request, and the HTTP status for each error of Palermo."""

from starlette.exceptions import HTTPException


class Refused(HTTPException):
    """A refused request: the answer's status, and the reason for people."""

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, text, headers)
