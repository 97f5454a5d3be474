"""The pickle serializer: for almost any Python value, without protection against the author of the body.

Unpickling runs code that the bytes choose. So a worker refuses pickle unless started with ``--accept pickle``, and
nothing is unpickled for display. If others can publish too, sign bodies to accept pickle only from your own programs.
"""

import pickle
from collections.abc import Mapping
from typing import Final

from palermo.errors import DecodeError, EncodeError
from palermo.serializers.tags import MAX_DEPTH, path, step

#: Readable by Python 3.8 and later.
_PROTOCOL: Final = 5


class PickleSerializer:
    """The standard library's pickle. Ignores `classes`, because classes are found by import."""

    name = "pickle"
    media_type = "application/x-pickle"
    safe = False

    def dumps(self, value: object) -> bytes:
        try:
            return pickle.dumps(value, protocol=_PROTOCOL)
        except Exception as error:  # a user's __reduce__ may raise anything
            steps = _path_to_unpicklable(value)
            raise EncodeError(f"{path(value, steps)} cannot be pickled: {type(error).__name__}: {error}") from error

    def loads(self, data: bytes, classes: Mapping[str, type]) -> object:
        try:
            return pickle.loads(data)
        except Exception as error:  # unpickling runs untrusted code, which may raise anything
            raise DecodeError(
                f"the body cannot be unpickled: {type(error).__name__}: {error}. Classes are found by import, "
                "so the worker must be able to import them by the names they had where the job was enqueued."
            ) from error


def _path_to_unpicklable(value: object) -> list[str]:
    """The path to the innermost item of lists, tuples and dicts that can't be pickled."""
    steps: list[str] = []
    while len(steps) < MAX_DEPTH:
        match value:
            case dict():
                items = list(value.items())
            case list() | tuple():
                items = list(enumerate(value))
            case _:
                break
        bad = next(((key, item) for key, item in items if not _can_pickle(item)), None)
        if bad is None:
            break
        steps.append(step(bad[0]))
        value = bad[1]
    return steps


def _can_pickle(value: object) -> bool:
    try:
        pickle.dumps(value, protocol=_PROTOCOL)
    except Exception:  # as above
        return False
    return True
