"""The kinds of job option values, and how each is read.

Law: a kind imports what it needs when it reads its first value, so that declaring jobs doesn't import more than
necessary.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from msgspec import Struct

from palermo.core.bounds import MAX_LIMIT
from palermo.core.fair_scheduling import is_tenant
from palermo.core.times import in_seconds, unix_seconds
from palermo.core.topology import check_id, check_new_queue
from palermo.errors import OptionInvalid


class Kind(Struct, frozen=True):
    """A value that needs no check, or is checked where it is used."""

    #: Placeholder in command help.
    metavar: ClassVar[str] = "TEXT"

    def read(self, name: str, value: Any) -> Any:
        """Check and convert an option's value; durations become seconds. Raises OptionInvalid."""
        return value


class Checked(Kind, frozen=True):
    """A value checked by a function that raises if it is invalid."""

    check: Callable[[Any], object]

    def read(self, name: str, value: Any) -> Any:
        self.check(value)
        return value


class Text(Kind, frozen=True):
    """A name."""

    metavar: ClassVar[str] = "NAME"

    def read(self, name: str, value: Any) -> Any:
        if not isinstance(value, str):
            raise OptionInvalid(f"option {name}={value!r} is not a string; give the name of a {name}, such as 'json'.")
        return value


class Flag(Kind, frozen=True):
    """True or False."""

    def read(self, name: str, value: Any) -> Any:
        if not isinstance(value, bool):
            raise OptionInvalid(f"option {name}={value!r} is neither True nor False.")
        return value


class Seconds(Kind, frozen=True):
    """A duration: seconds, or a timedelta."""

    metavar: ClassVar[str] = "TIME"
    from_zero: bool = False

    def read(self, name: str, value: Any) -> Any:
        seconds = in_seconds(value)
        if _is_duration(seconds) or (self.from_zero and seconds == 0 and not isinstance(seconds, bool)):
            return float(seconds)
        least = "from 0 on, such as 0.2" if self.from_zero else "above 0, such as 30"
        raise OptionInvalid(f"option {name}={value!r} is not a duration; give seconds {least}, or a timedelta.")


class Count(Kind, frozen=True):
    """An integer between bounds."""

    metavar: ClassVar[str] = "N"
    least: int
    most: int

    def read(self, name: str, value: Any) -> Any:
        if not isinstance(value, int) or isinstance(value, bool) or not self.least <= value <= self.most:
            raise OptionInvalid(f"option {name}={value!r} is not a whole number from {self.least} to {self.most:,}.")
        return value


class MayFail(Kind, frozen=True):
    """A number of tolerated failures, or True for any number."""

    metavar: ClassVar[str] = "N"

    def read(self, name: str, value: Any) -> Any:
        if not isinstance(value, int) or not 0 <= value <= MAX_LIMIT:
            raise OptionInvalid(f"option {name}={value!r} is neither True nor a number from 0 to {MAX_LIMIT:,}.")
        return MAX_LIMIT if value is True else int(value)


class Number(Kind, frozen=True):
    """A number between bounds."""

    metavar: ClassVar[str] = "N"
    least: float
    most: float

    def read(self, name: str, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.least <= value <= self.most:
            raise OptionInvalid(f"option {name}={value!r} is not a number from {self.least:g} to {self.most:,.0f}.")
        return float(value)


class Choice(Kind, frozen=True):
    """One of a set of words."""

    metavar: ClassVar[str] = "HOW"
    words: tuple[str, ...]

    def read(self, name: str, value: Any) -> Any:
        if value not in self.words:
            known = ", ".join(map(repr, filter(None, self.words)))
            raise OptionInvalid(f"option {name}={value!r} is invalid; use one of {known}.")
        return value


class UniqueFor(Choice, frozen=True):
    """One of a set of words, or a duration."""

    def read(self, name: str, value: Any) -> Any:
        if value in self.words:
            return value
        seconds = in_seconds(value)
        if not _is_duration(seconds):
            words = ", ".join(f'"{word}"' for word in self.words)
            raise OptionInvalid(f"option {name}={value!r} is invalid; use {words}, seconds above 0, or a timedelta.")
        return float(seconds)


class Key(Kind, frozen=True):
    """Text, or a function of the job's arguments that returns it. `check` raises for invalid text."""

    check: Callable[[Any], object]

    def read(self, name: str, value: Any) -> Any:
        if not callable(value):
            self.check(value)
        return value


class Tenant(Key, frozen=True):
    """A tenant's name, or a function of the job's arguments that returns it."""

    metavar: ClassVar[str] = "NAME"


class Rate(Checked, frozen=True):
    """A rate such as 100/min."""

    metavar: ClassVar[str] = "N/TIME"


class Headers(Kind, frozen=True):
    """Additional message headers set by the user."""

    metavar: ClassVar[str] = "NAME=TEXT"

    def read(self, name: str, value: Any) -> Any:
        from palermo.core.own_headers import check_own_headers

        return check_own_headers(value)


class Errors(Kind, frozen=True):
    """One or more exception classes."""

    def read(self, name: str, value: Any) -> Any:
        classes = value if isinstance(value, tuple | list) else (value,)
        if not classes or not all(isinstance(one, type) and issubclass(one, BaseException) for one in classes):
            raise OptionInvalid(
                f"option {name}={value!r} is neither an exception class nor a tuple of exception classes."
            )
        return value


def check_unique_key(value: object) -> None:
    """Raise OptionInvalid unless this can be a key."""
    if not isinstance(value, str) or not value:
        raise OptionInvalid(f"option unique_key={value!r} is neither text nor a function of the arguments.")


def check_rate(value: object) -> None:
    """Raise OptionInvalid unless this is a rate, such as 100/min."""
    from palermo.core import limits

    limits.Rate.parse(value)


def check_limit_key(value: object) -> None:
    """Raise OptionInvalid unless this is a valid limit key."""
    from palermo.core.limits import check_key

    check_key(value)


def check_tenant(value: object) -> None:
    """Raise OptionInvalid unless this is a valid tenant name."""
    if not is_tenant(value):
        raise OptionInvalid(
            f"option tenant={value!r} is not a tenant; give text of 1 to 255 bytes without spaces at either end,"
            " or a function of the job's arguments."
        )


def check_backoff(value: object) -> None:
    """Raise OptionInvalid unless a retry policy can compute delays from this value."""
    from palermo.core.backoff import CustomBackoff, backoff
    from palermo.jobs.origin import signature_of

    match backoff(value):
        case CustomBackoff(function):
            try:
                signature = signature_of(function)
            except (TypeError, ValueError):  # a function written in C
                return
            try:
                signature.bind(1, ValueError())
            except TypeError as error:
                raise OptionInvalid(
                    f"backoff={value!r} cannot be called with two arguments, the attempt and the error: {error}."
                ) from None


def _is_duration(seconds: Any) -> bool:
    from palermo.core.message import MAX_SECONDS

    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < MAX_SECONDS / 2


#: Most options are one of these.
ANY, NAME, FLAG, SECONDS = Kind(), Text(), Flag(), Seconds()
QUEUE, ID, BACKOFF = Checked(check_new_queue), Checked(check_id), Checked(check_backoff)
INSTANT, RATE = Checked(unix_seconds), Rate(check_rate)
