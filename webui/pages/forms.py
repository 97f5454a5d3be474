"""Common parts of all forms: reading the fields, and showing each error at its field."""

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

#: Errors in the user's input. A form shows them and keeps the input.
FORM_ERRORS = (UsageError, SerializationError, Refused)

#: The field name for errors of the whole form.
WHOLE = ""

NO_PROBLEMS: Mapping[str, str] = MappingProxyType({})

#: Names of the types of arguments, for users.
_SHAPES: dict[type, str] = {
    list: 'a JSON list, such as [1, "a"]',
    dict: 'a JSON object, such as {"width": 640}',
}


class ShownForm(Struct, frozen=True):
    """A displayed form: its values as typed, and its errors."""

    #: The prefix of its fields' ids.
    prefix: str
    #: The text in each field, by name.
    values: Mapping[str, str]
    #: The error of each field, by name, or of the whole form by WHOLE.
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def first(self) -> str:
        """The first field with an error, or "". It gets the focus."""
        return next((name for name in self.values if name in self.problems), "")


class FormInvalid(Refused):
    """A rejected form (422)."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__(422, " ".join(problems.values()))
        self.problems = problems


class Problems(dict[str, str]):
    """The errors found while reading a form, by field."""

    @contextmanager
    def at(self, name: str) -> Iterator[None]:
        """Catch an error in the block, and record it for this field."""
        try:
            yield
        except FORM_ERRORS as error:
            self[name] = " ".join(problems_of(error).values())

    def check(self) -> None:
        """Raise FormInvalid if there are any."""
        if self:
            raise FormInvalid(self)


def problems_of(error: Exception, *, conflict: str = WHOLE) -> Mapping[str, str]:
    """Return the text of an error, mapped from the field at which it is shown. `conflict` is the field for errors with
    status 409.

    Raises the error if it isn't about the input.
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
        # The wording of inspect.Signature.bind.
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
    """Return a field's JSON value, which must be of this kind; None if it is empty. Raises Refused (422)."""
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
    """Return the arguments in two fields; None for an empty field or one with an error."""
    positional = named = None
    with problems.at("args"):
        positional = read_json(args, "positional arguments", list)
    with problems.at("kwargs"):
        named = read_json(kwargs, "keyword arguments", dict)
    return positional, named


def read_priority(text: str) -> int | None:
    """Return the priority in a field; None if it is empty. Raises OptionInvalid."""
    text = text.strip()
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or int(text) > MAX_PRIORITY:
        raise OptionInvalid(f"priority is {text[:20]!r}; give a number from 0 to {MAX_PRIORITY}.")
    return int(text)


class TimeFields(Struct, frozen=True, kw_only=True):
    """The fields for a time, as typed: a text, or else a local date and time with its time zone."""

    when: str = ""
    on: str = ""
    zone: str = "UTC"

    @property
    def values(self) -> dict[str, str]:
        """Return the text in each field, by name."""
        return {"when": self.when, "on": self.on, "zone": self.zone}

    def read(self, problems: Problems, *, required: bool = False) -> float | None:
        """Return the time in Unix seconds; None if it is empty or invalid."""
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
        """Return the new time of jobs in Unix seconds, or for +1h the seconds by which to postpone each."""
        when = self.when.strip()
        if not when.startswith("+") or self.on.strip():
            return self.read(problems, required=True), None
        with problems.at("when"):
            return None, _delay_of(when)
        return None, None


def is_time_zone(name: str) -> bool:
    """Whether this machine knows a time zone with this name."""
    try:
        ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        return False
    return True


def _instant_of(text: str, zone: ZoneInfo) -> float:
    """Return a local date and time in Unix seconds, the earlier one if it is ambiguous. Raises Refused,
    OptionInvalid.
    """
    try:
        local = datetime.fromisoformat(text).replace(tzinfo=None)
        moment = local.replace(tzinfo=zone)
        exists = moment.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == local
    except (ValueError, OverflowError):
        raise Refused(422, f"{text[:40]!r} is not a date and time. Write, for example, 2026-12-01T09:00.") from None
    if not exists:
        raise Refused(422, f"{text[:40]} does not exist in {zone.key}, because the clocks go forward at that time.")
    return times.unix_seconds(moment)


def _delay_of(text: str) -> float:
    """Return the seconds of a text such as +1h. Raises Refused (422)."""
    try:
        return parse_duration(text.removeprefix("+"))
    except ValueError:
        raise Refused(422, f"{text[:40]!r} is not a delay. Write, for example, +1h, +90m or +2d.") from None


def later_of(text: str) -> float:
    """Return a duration from now, or an instant with its zone, in Unix seconds. Raises Refused (422), OptionInvalid."""
    try:
        return times.unix_seconds(times.parse_time(text, clock.now(), ago=False))
    except ValueError as error:
        raise Refused(422, str(error)) from None
