"""The classes and the values that the serializers' tests send through."""

from dataclasses import dataclass, field
from datetime import UTC, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

from palermo.contract.class_hints import classes_in
from palermo.contract.serialization import Encoded
from palermo.core.message import Message


class Color(Enum):
    RED = "r"
    BLUE = (0, 0, 255)


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


class Mode(StrEnum):
    FAST = "fast"


class Rights(Flag):
    READ = 1
    WRITE = 2


@dataclass(frozen=True, slots=True)
class Line:
    article: str
    price: Decimal


@dataclass
class Order:
    number: int
    color: Color
    lines: tuple[Line, ...] = ()
    rights: Rights = Rights.READ
    total: Decimal = field(init=False, default=Decimal(0))


CLASSES = classes_in([Order, Size, Mode])

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
INTEGERS = st.integers() | st.integers(-(2**2_100), 2**2_100)
ZONES = st.none() | st.sampled_from(
    [
        UTC,
        timezone(timedelta(hours=-9, minutes=-30)),
        timezone(timedelta(hours=1, minutes=2, seconds=3, microseconds=4)),
        ZoneInfo("Europe/Rome"),
        ZoneInfo("America/St_Johns"),
        ZoneInfo("UTC"),
    ]
)
DATETIMES = st.datetimes(timezones=ZONES, allow_imaginary=True)
LINES = st.builds(Line, TEXT, st.decimals(allow_nan=False))
RIGHTS = st.sampled_from([*Rights, Rights(3)])
ORDERS = st.builds(Order, INTEGERS, st.sampled_from(Color), st.lists(LINES, max_size=3).map(tuple), RIGHTS)
SCALARS = (
    st.none()
    | st.booleans()
    | INTEGERS
    | st.floats(allow_nan=False)
    | TEXT
    | DATETIMES
    | st.dates()
    | st.times(timezones=ZONES)
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.binary()
    | st.sampled_from([*Color, *Size, *Mode, Rights(0), Rights(3)])
    | LINES
    | ORDERS
)
KEYS = SCALARS.filter(lambda value: not isinstance(value, Order)) | st.just("$palermo")


def _containers(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS | st.tuples(KEYS, KEYS), inner, max_size=4)
        | st.dictionaries(TEXT | st.just("$palermo"), inner, max_size=4)
        | st.sets(KEYS, max_size=4)
        | st.frozensets(KEYS, max_size=4)
        | st.binary().map(bytearray)
    )


VALUES = st.recursive(SCALARS, _containers, max_leaves=15)


def same(left: Any, right: Any) -> bool:
    """Equal, of the same types all the way down, with the same time zones and folds."""
    match left, right:
        case (list(), list()) | (tuple(), tuple()):
            return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
        case dict(), dict():
            return list(map(shape, left)) == list(map(shape, right)) and all(map(same, left.values(), right.values()))
        case (set(), set()) | (frozenset(), frozenset()):
            return sorted(map(shape, left)) == sorted(map(shape, right))
        case Order(), Order():
            return all(map(same, vars(left).values(), vars(right).values()))
        case _:
            return shape(left) == shape(right)


def shape(value: Any) -> str:
    """A text that two values share only if they are the same: repr shows types, zones, folds, and the sign of zero."""
    if isinstance(value, tuple):
        return f"({','.join(map(shape, value))})"
    return f"{type(value).__qualname__} {value!r}"


def sent(encoded: Encoded) -> Message:
    """A job that was enqueued with these arguments."""
    made = {"body": encoded.body, "content_type": encoded.content_type, "content_encoding": encoded.content_encoding}
    return Message(id="7", queue="jobs", job="shop.pay", arguments=encoded.arguments, **made)
