"""Pydantic models as arguments and results of jobs, chosen by annotations.

A parameter annotated with a model receives that model. The caller validates the arguments and sends them as plain JSON
values, which the worker validates again. Pages, other programs and other languages can therefore read and write them.
Results annotated with a model are handled in the same way.

Only this module imports pydantic for jobs, and only if the program already has: otherwise no annotation can refer to a
model.
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


#: Prefix of the placeholder for another step's output in the arguments of a step.
MARK = "~output-"


class JobModels:
    """A job's parameters and result that are models or contain models."""

    def __init__(self, job: str, adapters: "Mapping[str, TypeAdapter[Any]]", signature: Signature) -> None:
        """`adapters` contains the parameters' adapters by name, and the result's adapter as `return`."""
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
        """Return the models in these evaluated annotations, or None. If batched, the parameter is a list of items."""
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
        """Return the arguments converted to their annotations. `decoded` means that they are JSON values from a
        message.

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
        """Return validated arguments as JSON values."""
        return self._each(args, kwargs, lambda _, adapter, value: _plain(adapter, value))

    def written_result(self, value: Any) -> Any:
        """Return the job's validated return value as JSON values. Raises ValueError."""
        adapter = self._adapters.get("return")
        if adapter is None:
            return value
        valid = _validated(adapter, value, decoded=False, failed=lambda why: ValueError(f"it is invalid: {why}"))
        return _plain(adapter, valid)

    def read_result(self, value: Any) -> Any:
        """Return a stored result converted to its annotation. Raises DecodeError."""
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
    """Return the value converted to its annotation. Strict models accept some JSON types that they reject in Python."""
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
    lines = [f"{'.'.join(map(str, one['loc'])) or 'value'}: {one['msg']}" for one in errors[:_MAX_ERRORS]]
    more = len(errors) - len(lines)
    return "; ".join(lines) + (f"; and {more} more." if more else ".")
