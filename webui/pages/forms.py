"""The shared parts of all forms: they read the fields, and show each error at its field."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

from msgspec import Struct, field

from palermo.contract import clock
from palermo.core import times
from palermo.core.times import parse_duration
from palermo.core.topology import MAX_PRIORITY
from palermo.errors import ArgumentsInvalid, NotFound, OptionInvalid, QueueNameInvalid, SerializationError, UsageError
from palermo.webui.actions import Unserved
from palermo.webui.site import Refused

#: Errors in the user's input: a form shows them, and keeps the input.
FORM_ERRORS = (UsageError, SerializationError, Refused)

#: Field name for errors of the whole form.
WHOLE = ""

#: No errors.
NO_PROBLEMS: Mapping[str, str] = MappingProxyType({})

#: The shapes of arguments, for people.
_SHAPES: dict[type, str] = {
    list: 'a JSON list, such as [1, "a"]',
    dict: 'a JSON object, such as {"width": 640}',
}


class ShownForm(Struct, frozen=True):
    """A form as a page shows it: its values as typed, and its errors."""

    #: The prefix of its fields' ids.
    prefix: str
    #: The text in each field, by its name.
    values: Mapping[str, str]
    #: By field, the error of what was typed there; WHOLE for an error of no single field.
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def first(self) -> str:
        """The first field with an error, which gets the focus; "" if no field has one."""
        return next((name for name in self.values if name in self.problems), "")


class FormInvalid(Refused):
    """A rejected form (422)."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__(422, " ".join(problems.values()))
        self.problems = problems


class Problems(dict[str, str]):
    """The errors that are found while a form is read, by field."""

    @contextmanager
    def at(self, name: str) -> Iterator[None]:
        """Record an error of this field, and continue after the block."""
        try:
            yield
        except FORM_ERRORS as error:
            self[name] = " ".join(problems_of(error).values())

    def check(self) -> None:
        """Raise FormInvalid if there are any."""
        if self:
            raise FormInvalid(self)


def problems_of(error: Exception, *, conflict: str = WHOLE) -> Mapping[str, str]:
    """The error of a form, by the field where it is shown; `conflict` is the field for an answer with status 409.

    Raises the error again if it is not about the input.
    """
    match error:
        case FormInvalid():
            return error.problems
        case Unserved():
            return {"queue": f"{error.text} Send the form again to use this queue anyway."}
        case Refused(status_code=409):
            return {conflict: str(error.detail)}
        case Refused(status_code=422):
            return {WHOLE: str(error.detail)}
        case QueueNameInvalid():
            return {"queue": str(error)}
        # The words of inspect.Signature.bind.
        case ArgumentsInvalid() if "keyword" in str(error):
            return {"kwargs": str(error)}
        case NotFound():
            return {WHOLE: f"{error} Your input is still in the fields."}
        case ArgumentsInvalid() | SerializationError():
            return {"args": str(error)}
        case UsageError():
            return {WHOLE: str(error)}
    raise error


def read_json(text: str, what: str, kind: type) -> Any:
    """The JSON value of a field, which must be of this kind; None if the field is empty. Raises Refused (422)."""
    if not text.strip():
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(422, f"the {what} are not valid JSON: {error}. Write {_SHAPES[kind]}.") from None
    if not isinstance(value, kind):
        raise Refused(422, f"the {what} must be {_SHAPES[kind]}.")
    return value


def read_arguments(problems: Problems, args: str, kwargs: str) -> tuple[list[Any] | None, dict[str, Any] | None]:
    """The arguments in two fields; None for an empty field, and for one with an error."""
    positional = named = None
    with problems.at("args"):
        positional = read_json(args, "positional arguments", list)
    with problems.at("kwargs"):
        named = read_json(kwargs, "named arguments", dict)
    return positional, named


def read_priority(text: str) -> int | None:
    """The priority in a field; None if it is empty. Raises OptionInvalid."""
    text = text.strip()
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or int(text) > MAX_PRIORITY:
        raise OptionInvalid(f"priority is {text[:20]!r}; give a number from 0 to {MAX_PRIORITY}.")
    return int(text)


class TimeFields(Struct, frozen=True, kw_only=True):
    """The fields for a time, as typed: a text, or else a local date and time and its time zone."""

    when: str = ""
    on: str = ""
    zone: str = "UTC"

    @property
    def values(self) -> dict[str, str]:
        """The text in each field, by its name."""
        return {"when": self.when, "on": self.on, "zone": self.zone}

    def read(self, problems: Problems, *, required: bool = False) -> float | None:
        """Unix seconds of the time; None if it is empty or invalid."""
        when, on = self.when.strip(), self.on.strip()
        if when and on:
            problems["on"] = "the time is given twice. Clear one of the two fields."
        elif when:
            with problems.at("when"):
                return later_of(when)
        elif on:
            zone = self.zone.strip() or "UTC"
            if is_time_zone(zone):
                with problems.at("on"):
                    return _instant_of(on, ZoneInfo(zone))
            else:
                problems["zone"] = f"{zone[:40]!r} is not a known time zone. Write Europe/Rome or UTC, for example."
        elif required:
            problems["when"] = "give a time, in this field or the next one."
        return None

    def read_move(self, problems: Problems) -> tuple[float | None, float | None]:
        """The new time of jobs: in Unix seconds, or else for +1h the seconds by which each is due later."""
        when = self.when.strip()
        if not when.startswith("+") or self.on.strip():
            return self.read(problems, required=True), None
        with problems.at("when"):
            return None, _delay_of(when)
        return None, None


def is_time_zone(name: str) -> bool:
    """Whether this machine knows a time zone of this name."""
    try:
        ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        return False
    return True


def _instant_of(text: str, zone: ZoneInfo) -> float:
    """Unix seconds of a local date and time; the first of two where clocks go back. Raises Refused, OptionInvalid."""
    try:
        local = datetime.fromisoformat(text).replace(tzinfo=None)
        moment = local.replace(tzinfo=zone)
        exists = moment.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == local
    except (ValueError, OverflowError):
        raise Refused(422, f"{text[:40]!r} is not a date and time such as 2026-12-01T09:00.") from None
    if not exists:
        raise Refused(422, f"{text[:40]} does not exist in {zone.key}, because the clocks are set forward then.")
    return times.unix_seconds(moment)


def _delay_of(text: str) -> float:
    """Seconds of a text such as +1h. Raises Refused (422)."""
    try:
        return parse_duration(text.removeprefix("+"))
    except ValueError:
        raise Refused(422, f"{text[:40]!r} is not a delay such as +1h, +90m or +2d.") from None


def later_of(text: str) -> float:
    """Unix seconds of a text: a duration from now, or an instant with its zone. Raises Refused (422), OptionInvalid."""
    try:
        return times.unix_seconds(times.parse_time(text, clock.now(), ago=False))
    except ValueError as error:
        raise Refused(422, str(error)) from None
