"""Packs the results of runs, and the changes that a job leaves in its process, into frames for the parent.

What is unpacked here comes from processes that run user code, so everything is checked.
"""

from collections.abc import Mapping
from typing import Any

from palermo.core.backoff import is_delay
from palermo.core.failure import Failure
from palermo.core.lifecycle import (
    BatchResult,
    Cancelled,
    Dropped,
    Interrupted,
    Raised,
    Result,
    Retrying,
    StoredResult,
    Succeeded,
)
from palermo.worker.ipc.frames import SUCCESS, pack_reply

#: The most characters of a description of changes: paths may be long.
_MAX_CHANGES = 2_000


def pack_changes(changes: str) -> bytes:
    """The frame that tells the parent which changes a job has left in its process."""
    return pack_reply({"changed": changes[:_MAX_CHANGES]})


def unpack_changes(reply: Mapping[str, Any]) -> str:
    """The changes that `pack_changes` packed; "" for another reply. It comes from a process that runs user code."""
    match reply:
        case {"changed": str(changes), **rest} if not rest and len(changes) <= _MAX_CHANGES:
            return changes
    return ""


def pack_result(result: Result | BatchResult, **more: Any) -> bytes:
    """The frame that tells the parent the result of a run, with the fields `more`."""
    match result:
        case Succeeded(skipped=False, value=None, refused="") if not more:
            return SUCCESS
        case BatchResult(results):
            return pack_reply({"batch": [result_to_plain(each) for each in results], **more})
        case _:
            return pack_reply({**result_to_plain(result), **more})


def result_to_plain(result: Result) -> dict[str, Any]:
    """A result as values for JSON."""
    match result:
        case Succeeded(skipped, value, refused):
            kept = {} if value is None else {"result": value.to_plain()}
            return {"skipped": skipped, **kept, **({"refused": refused} if refused else {})}
        case Raised(failure):
            return {"failure": _failure_to_plain(failure)}
        case Retrying(failure, delay):
            return {"retry_in": delay, "because": None if failure is None else _failure_to_plain(failure)}
        case Dropped(reason):
            return {"dropped": reason}
        case Interrupted():
            return {"interrupted": True}
        case Cancelled():
            return {"cancelled": True}


def unpack_results(reply: Mapping[str, Any]) -> Result | BatchResult | None:
    """The result that `pack_result` wrote; None if the reply is no result."""
    match reply:
        case {"batch": list(parts)}:
            results = [unpack_result(part) for part in parts if isinstance(part, dict)]
            whole = tuple(
                each for each in results if each is not None and not isinstance(each, Interrupted | Cancelled)
            )
            return BatchResult(whole) if len(whole) == len(parts) else None
    return unpack_result(reply)


def unpack_result(reply: Mapping[str, Any]) -> Result | None:
    """The result that `result_to_plain` wrote; None if the reply is no result."""
    match reply:
        case {"failure": dict(values)} if failure := _failure(values):
            return Raised(failure)
        case {"retry_in": float() | int() as delay, "because": None} if is_delay(delay):
            return Retrying(None, float(delay))
        case {"retry_in": float() | int() as delay, "because": dict(values)} if is_delay(delay):
            failure = _failure(values)
            return None if failure is None else Retrying(failure, float(delay))
        case {"dropped": str(reason)}:
            return Dropped(reason)
        case {"skipped": bool(skipped), "result": dict(plain)}:
            value = StoredResult.from_plain(plain)
            return None if value is None else Succeeded(skipped, value)
        case {"skipped": bool(skipped), "refused": str(refused)}:
            return Succeeded(skipped, refused=refused)
        case {"skipped": bool(skipped)}:
            return Succeeded(skipped)
        case {"interrupted": True}:
            return Interrupted()
        case {"cancelled": True}:
            return Cancelled()
    return None


def _failure_to_plain(failure: Failure) -> dict[str, Any]:
    return {name: getattr(failure, name) for name in Failure.__slots__}


def _failure(values: Mapping[str, Any]) -> Failure | None:
    match values:
        case {"exception_class": str(), "message": str(), "stack_trace": str(), "failed_at": int()}:
            return Failure(**{name: values[name] for name in Failure.__slots__})
    return None
