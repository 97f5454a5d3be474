"""Serializes the value that a job returned, for the journal. It runs in the slot, where the value is.

A job whose result cannot be kept has done its work all the same: it succeeds, and a client that asks for the
result is told why there is none.
"""

from palermo.contract.serialization import Serializer, Serializers
from palermo.core.lifecycle import SUCCEEDED, StoredResult, Succeeded, why_not_stored
from palermo.core.message import Message
from palermo.errors import JobError
from palermo.jobs.definition import JobDefinition

#: The serializer of results where the job's own is not safe to read: a client must run no code that a worker wrote.
_SAFE = "json"

#: The most characters of a reason.
_MAX_REASON = 500

#: The names that serializers use for their value in error texts, since they are written for arguments.
_ROOTS = ("args", "kwargs", "value")


class ReturnValues:
    """Turns the value that a job returned into the one that the journal keeps."""

    def __init__(self, serializers: Serializers, *, serializer: str = _SAFE, limit: int) -> None:
        """`serializer` is for jobs that name none; `limit` is in bytes."""
        self._serializers = serializers
        self._serializer = serializer
        self._limit = limit

    def succeeded(self, message: Message, definition: JobDefinition, returned: object) -> Succeeded:
        """The result of a job that returned this value."""
        wanted = definition.keep_result if message.keep_result is None else message.keep_result
        if not wanted:
            return SUCCEEDED
        try:
            serializer = self._chosen(definition)
            value = StoredResult(serializer.media_type, serializer.dumps(returned))
        except JobError:  # its time is over, the worker stops, or someone cancelled it
            raise
        except Exception as error:  # the value's own code may raise anything
            return Succeeded(refused=f"the result cannot be serialized: {_reason(error)}"[:_MAX_REASON])
        refused = why_not_stored(value, self._limit)
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
