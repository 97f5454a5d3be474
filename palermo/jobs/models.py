"""Pydantic models as the arguments and results of jobs, by annotation.

A parameter annotated with a model gets that model. Arguments are validated in the caller, sent as plain JSON values,
and validated again in the worker. So pages, other programs and other languages can read and write them. The same
applies to a result annotated with a model.

This is the only module that imports pydantic for jobs, and only if the program has imported it: otherwise no
annotation can name a model.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, get_args

from palermo.errors import ArgumentsInvalid, DecodeError

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

#: Maximum number of errors listed for one value.
_MAX_ERRORS = 5


#: Prefix of the text that replaces the output of a step in the arguments of another step.
MARK = "~output-"


class JobModels:
    """The parameters and the result of one job that are models or contain models."""

    def __init__(self, job: str, adapters: "Mapping[str, TypeAdapter[Any]]", signature: Signature) -> None:
        """`adapters` are those of the parameters, by name, and that of the result as `return`."""
        self._job = job
        self._adapters = adapters
        parameters = signature.parameters.values()
        self._positional = [
            one.name for one in parameters if one.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        ]
        self._others = {one.kind: one.name for one in parameters}
        self._named = {one.name for one in parameters}

    @classmethod
    def of(cls, job: str, hints: Mapping[str, Any], signature: Signature, *, batched: bool) -> "JobModels | None":
        """The models in these evaluated annotations, or None. A batch's parameter is a list of items."""
        if "pydantic" not in sys.modules:
            return None
        from pydantic import TypeAdapter

        if batched:
            items = {name: get_args(hint) for name, hint in hints.items()}
            hints = {name: found[0] for name, found in items.items() if found and name != "return"}
        named = {name: hint for name, hint in hints.items() if _holds_model(hint)}
        return cls(job, {name: TypeAdapter(hint) for name, hint in named.items()}, signature) if named else None

    def validated(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, decoded: bool
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments, converted to the annotations. `decoded` means that they come from a message, as JSON values.

        Raises ArgumentsInvalid.
        """

        def validate(name: str, adapter: "TypeAdapter[Any]", value: Any) -> Any:
            return _validated(
                adapter,
                value,
                decoded=decoded,
                failed=lambda why: ArgumentsInvalid(f"argument {name} of job {self._job!r} is invalid: {why}"),
            )

        return self._each(args, kwargs, validate)

    def written(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Validated arguments as JSON values."""
        return self._each(args, kwargs, lambda _, adapter, value: _plain(adapter, value))

    def written_result(self, value: Any) -> Any:
        """The job's return value, validated, as JSON values. Raises ValueError."""
        adapter = self._adapters.get("return")
        if adapter is None:
            return value
        valid = _validated(adapter, value, decoded=False, failed=lambda why: ValueError(f"it is invalid: {why}"))
        return _plain(adapter, valid)

    def read_result(self, value: Any) -> Any:
        """A kept result, converted to the annotation. Raises DecodeError."""
        adapter = self._adapters.get("return")
        if adapter is None:
            return value
        return _validated(
            adapter,
            value,
            decoded=True,
            failed=lambda why: DecodeError(f"the result of job {self._job!r} is invalid: {why}"),
        )

    def _each(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        change: "Callable[[str, TypeAdapter[Any], Any], Any]",
    ) -> tuple[list[Any], dict[str, Any]]:
        def changed(name: str | None, value: Any) -> Any:
            adapter = self._adapters.get(name) if name is not None else None
            if adapter is None or name is None or (isinstance(value, str) and value.startswith(MARK)):
                return value
            return change(name, adapter, value)

        rest = self._others.get(Parameter.VAR_POSITIONAL)
        names = [*self._positional[: len(args)], *[rest] * (len(args) - len(self._positional))]
        more = self._others.get(Parameter.VAR_KEYWORD)
        return (
            [changed(name, value) for name, value in zip(names, args, strict=True)],
            {name: changed(name if name in self._named else more, value) for name, value in kwargs.items()},
        )


def _holds_model(hint: Any) -> bool:
    from pydantic import BaseModel

    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return True
    return any(_holds_model(part) for part in get_args(hint))


def _validated(adapter: "TypeAdapter[Any]", value: Any, *, decoded: bool, failed: Callable[[str], Exception]) -> Any:
    """The value, converted to the annotation. A strict model accepts some types from JSON that it rejects from
    Python."""
    from pydantic import ValidationError
    from pydantic_core import PydanticSerializationError, to_json

    def from_json() -> Any:
        return adapter.validate_json(to_json(value))

    ways = [from_json, lambda: adapter.validate_python(value)]
    first: ValidationError | None = None
    for way in ways if decoded else reversed(ways):
        try:
            return way()
        except ValidationError as error:
            first = first or error
        except PydanticSerializationError:  # not a JSON value
            continue
    assert first is not None
    raise failed(_why(first)) from None


def _plain(adapter: "TypeAdapter[Any]", value: Any) -> Any:
    return adapter.dump_python(value, mode="json", by_alias=True, round_trip=True)


def _why(error: "ValidationError") -> str:
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    told = [f"{'.'.join(map(str, one['loc'])) or 'value'}: {one['msg']}" for one in errors[:_MAX_ERRORS]]
    more = len(errors) - len(told)
    return "; ".join(told) + (f"; and {more} more." if more else ".")
