"""The values that travel between the steps of a workflow.

Only slots decode values. Where a value uses the output of another step, its bytes contain a mark: random text and a
number. If all parts are JSON, each mark is replaced by the text of its output before the job is enqueued. Otherwise the
slot decodes each part with its own serializer, and then replaces the marks.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import DecodeError as MsgspecError
from msgspec import Struct, ValidationError, msgpack

from palermo.core.lifecycle import StoredResult
from palermo.core.message import JSON
from palermo.errors import DecodeError, ResultRefused

#: Media type of a value that contains outputs of other steps.
STEP = "application/x-palermo-step"


class Use(Struct, frozen=True, array_like=True):
    """A step of the same graph whose output is used. For a map, `members` is the number of its members."""

    step: str
    members: int | None = None


class Output(Struct, frozen=True, array_like=True):
    """The output of a step. None if the step failed and is allowed to fail; for a map, its members' outputs in
    order.
    """

    value: "Value | None" = None
    members: "tuple[Output, ...] | None" = None
    #: Why it is not available.
    refused: str = ""


class Value(Struct, frozen=True, array_like=True):
    """A serialized value, or arguments, with the outputs of other steps."""

    content_type: str
    body: bytes
    #: Random text in front of each mark's number; "" without marks.
    mark: str = ""
    #: For each mark by number: the step that it stands for, or its output once that is known.
    uses: tuple[Use, ...] = ()
    outputs: tuple[Output, ...] = ()

    @classmethod
    def of(cls, result: StoredResult) -> "Value":
        """The value of a result, which may be packed."""
        return unpack(result.body, cls) if result.content_type == STEP else cls(result.content_type, result.body)

    @property
    def stored(self) -> StoredResult:
        """The value in the form of a result."""
        return StoredResult(STEP, pack(self)) if self.mark else StoredResult(self.content_type, self.body)


def pack(value: Struct) -> bytes:
    """Serialize a value, a graph, or a part of one."""
    return msgpack.encode(value)


def unpack(packed: bytes, kind: type[Any]) -> Any:
    """The inverse of `pack`. Raises DecodeError."""
    try:
        return msgpack.decode(packed, type=kind)
    except (MsgspecError, ValidationError) as error:
        raise DecodeError(f"a part of a workflow cannot be read: {error}") from None


def as_json(value: Value) -> bytes | None:
    """The value with its outputs as JSON, for workers in any language; None if a part of it is not JSON."""
    return _joined(value) if _is_json(value) else None


def _is_json(value: Value) -> bool:
    return value.content_type == JSON and all(map(_is_json_output, value.outputs))


def _is_json_output(found: Output) -> bool:
    if found.refused:
        return False
    return (found.value is None or _is_json(found.value)) and all(map(_is_json_output, found.members or ()))


def _joined(value: Value) -> bytes:
    if not value.mark:
        return value.body
    marks = re.compile(rb'"' + re.escape(value.mark.encode()) + rb'(\d+)"')
    return marks.sub(lambda found: _text(value.outputs[int(found[1])]), value.body)


def _text(found: Output) -> bytes:
    if found.members is not None:
        return b"[" + b",".join(map(_text, found.members)) + b"]"
    return b"null" if found.value is None else _joined(found.value)


def loaded(value: Value, read: Callable[[Value], object], own: Callable[[Value], object] | None = None) -> Any:
    """Decode the value with its outputs: `own` decodes the value itself, `read` the outputs.

    Raises ResultRefused for an unavailable output.
    """

    def output(found: Output) -> object:
        if found.refused:
            raise ResultRefused(found.refused)
        if found.members is not None:
            return [output(each) for each in found.members]
        return None if found.value is None else loaded(found.value, read)

    decoded = (own or read)(value)
    return filled(decoded, value.mark, [output(each) for each in value.outputs]) if value.mark else decoded


def filled(value: object, mark: str, outputs: Sequence[object]) -> Any:
    """The decoded value with its marks replaced by the outputs."""
    match value:
        case str() if value.startswith(mark):
            return outputs[int(value.removeprefix(mark))]
        case list():
            return [filled(each, mark, outputs) for each in value]
        case tuple():
            return tuple(filled(each, mark, outputs) for each in value)
        case Mapping():
            return {name: filled(each, mark, outputs) for name, each in value.items()}
    return value
