"""What a job returned, serialized to be kept; in the slot, because only there it is a value.

A job whose result cannot be kept has done its work all the same: it succeeds, and whoever asks for the
result is told why there is none.
"""

from palermo.core.lifecycle import Succeeded
from palermo.core.message import Message
from palermo.core.outcome import Value, check_size
from palermo.errors import JobError
from palermo.registry import JobDefinition
from palermo.serialization import Serializer, Serializers

SUCCEEDED = Succeeded()

#: Writes the results of jobs whose own serializer is not safe to read: those who ask run nothing that a worker wrote.
_SAFE = "json"

#: Characters of a reason that are kept.
_MAX_REASON = 500

#: How serializers call the value that they were given, where it stands for arguments.
_ROOTS = ("args", "kwargs", "value")


class Keeping:
    """Makes of what a job returned what the journal keeps."""

    def __init__(self, serializers: Serializers, *, serializer: str = _SAFE, limit: int) -> None:
        """`serializer` is for jobs that name none; `limit` is in bytes."""
        self._serializers = serializers
        self._serializer = serializer
        self._limit = limit

    def succeeded(self, message: Message, definition: JobDefinition, returned: object) -> Succeeded:
        """How a job ended that returned this."""
        wanted = definition.keep_result if message.keep_result is None else message.keep_result
        if not wanted:
            return SUCCEEDED
        try:
            serializer = self._chosen(definition)
            value = Value(serializer.media_type, serializer.dumps(returned))
        except JobError:  # its time is over, or someone cancelled it
            raise
        except Exception as error:  # what a value does while it is written is the user's
            return Succeeded(refused=f"the result cannot be serialized: {_reason(error)}"[:_MAX_REASON])
        refused = check_size(value, self._limit)
        return Succeeded(refused=refused) if refused else Succeeded(value=value)

    def _chosen(self, definition: JobDefinition) -> Serializer:
        serializer = self._serializers.get(definition.serializer or self._serializer)
        return serializer if serializer.safe else self._serializers.get(_SAFE)


def _reason(error: Exception) -> str:
    text = str(error)
    for root in _ROOTS:
        if text.startswith((root + "[", root + " ")):
            return "result" + text.removeprefix(root)
    return text or type(error).__name__
