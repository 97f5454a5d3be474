"""The values that travel between the steps of a workflow.

A value is never decoded outside of a slot. Where it takes the output of another step, its bytes have a mark: random
text and a number. Where all of it is JSON, the text of the outputs replaces the marks before the job is put into its
queue. Otherwise the slot reads each part with its own serializer, and puts the outputs in the places of the marks.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import DecodeError as MsgspecError
from msgspec import Struct, ValidationError, msgpack

from palermo.core.lifecycle import StoredResult
from palermo.core.message import JSON
from palermo.errors import DecodeError, ResultRefused

#: The media type of a value with outputs of other steps in it.
STEP = "application/x-palermo-step"


class Use(Struct, frozen=True, array_like=True):
    """A step of the same graph whose output is taken; of a map, the number of its members."""

    step: str
    members: int | None = None


class Output(Struct, frozen=True, array_like=True):
    """The output of a step, None if it failed and may fail; those of a map's members in their order."""

    value: "Value | None" = None
    members: "tuple[Output, ...] | None" = None
    #: Why it cannot be had.
    refused: str = ""


class Value(Struct, frozen=True, array_like=True):
    """A serialized value, or arguments, with the outputs of other steps."""

    content_type: str
    body: bytes
    #: What marks begin with; "" if there are none.
    mark: str = ""
    #: By number of the mark, the output that it stands for: where to find it, and then what it is.
    uses: tuple[Use, ...] = ()
    outputs: tuple[Output, ...] = ()

    @classmethod
    def of(cls, result: StoredResult) -> "Value":
        """The value of a result, which may be packed."""
        return unpack(result.body, cls) if result.content_type == STEP else cls(result.content_type, result.body)

    @property
    def stored(self) -> StoredResult:
        """The value as one result."""
        return StoredResult(STEP, pack(self)) if self.mark else StoredResult(self.content_type, self.body)


def pack(value: Struct) -> bytes:
    """The bytes of a value, a graph, or a part of one."""
    return msgpack.encode(value)


def unpack(packed: bytes, kind: type[Any]) -> Any:
    """The value that `pack` packed. Raises DecodeError."""
    try:
        return msgpack.decode(packed, type=kind)
    except (MsgspecError, ValidationError) as error:
        raise DecodeError(f"a part of a workflow cannot be read: {error}") from None


def as_json(value: Value) -> bytes | None:
    """The value with its outputs as JSON, which a worker in any language reads; None if a part of it is not JSON."""
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
    """The decoded value with its outputs: `own` reads the value itself, `read` the outputs.

    Raises ResultRefused for an output that cannot be had.
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
    """The decoded value with the outputs in the places of their marks."""
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
