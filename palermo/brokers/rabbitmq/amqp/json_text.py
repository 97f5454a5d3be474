"""Reads JSON that another process wrote into a queue or a stream of Palermo's own."""

import json
from typing import Any


def read_json(body: bytes) -> Any:
    """The value in a message's body. Raises ValueError for a body that is not JSON or is nested too deep.

    Python raises RecursionError for deep nesting, which ended the connection that the message came on.
    """
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("nested too deep") from None
