"""The result of a job whose process died: a fresh process of the pool applies the job's retry policy and its hooks."""

from typing import Any

from palermo.core.failure import Failure
from palermo.core.lifecycle import BatchResult, Dropped, Raised, Result, Retrying, RunResult
from palermo.core.message import Message
from palermo.worker.ipc.frames import pack_message


def pack_crashed(message: Message, failure: Failure, *slot: int) -> bytes:
    """The frame that asks a slot for the result of a job that ended with this failure; `slot` if slots share it."""
    values: dict[str, Any] = {name: getattr(failure, name) for name in Failure.__slots__}
    return pack_message("crashed", message, values, *slot)


def crash_result(answer: RunResult, failure: Failure) -> RunResult:
    """The result of a job with this failure, by the answer of the slot that was asked for it."""
    if isinstance(answer, BatchResult):
        return BatchResult(tuple(_crash_result(each, failure) for each in answer.results))
    return _crash_result(answer, failure)


def _crash_result(answer: Result, failure: Failure) -> Result:
    match answer:
        case Retrying(Failure(), delay):
            return Retrying(failure, delay)
        case Dropped():
            return answer
    return Raised(failure)
