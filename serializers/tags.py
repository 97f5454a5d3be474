"""Tags represent Python values that JSON and msgpack lack, so that they are restored exactly or not at all.

A tag is a kind, a plain value and, for dataclasses and enums, the dotted name of the class. The serializer decides its
form in the bytes, see Format.wrap. Instances of subclasses (defaultdict, namedtuple, numpy.float64) are rejected,
because another type would be restored.
"""

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag
from typing import Any, Final
from uuid import UUID

from msgspec import Struct

from palermo.contract.class_hints import dotted_name
from palermo.contract.serialization import FOR_DISPLAY, Unrestored
from palermo.core.arguments import brief
from palermo.core.failure import printable
from palermo.errors import DecodeError, EncodeError


def instant_text(value: datetime | time) -> str:
    """Return an instant as text, including the time zone's name and the repeated hour of a clock change.

    ``2026-10-25T02:30:00+01:00[Europe/Rome][fold=1]`` is ISO 8601 with the suffixes of RFC 9557. Programs that ignore
    the suffixes still get the right instant. Raises ValueError for a time zone without a name.
    """
    text = value.isoformat()
    zone = value.tzinfo
    if zone is not None and type(zone) is not timezone:
        key = getattr(zone, "key", None)
        if key is None or type(zone).__module__.partition(".")[0] not in ("zoneinfo", "_zoneinfo"):
            raise ValueError(
                f"has a time zone of {type(zone).__module__}.{type(zone).__qualname__}, which would be lost; "
                "use datetime.timezone or zoneinfo.ZoneInfo."
            )
        text += f"[{key}]"
    return f"{text}[fold=1]" if value.fold else text


def read_datetime(text: str) -> datetime:
    instant, zone, fold = _parts(text)
    value = datetime.fromisoformat(instant)
    if zone is None:
        return value.replace(fold=fold)
    named = value.replace(tzinfo=zone, fold=fold)
    # Another release of the zone's rules may differ; then the instant counts, not the wall clock.
    return named if named.utcoffset() == value.utcoffset() else value.astimezone(zone)


def read_time(text: str) -> time:
    instant, zone, fold = _parts(text)
    value = time.fromisoformat(instant)
    return value.replace(tzinfo=zone or value.tzinfo, fold=fold)


def _parts(text: str) -> tuple[str, tzinfo | None, int]:
    instant, *suffixes = text.replace("]", "").split("[")
    zone: tzinfo | None = None
    for suffix in suffixes:
        if "=" not in suffix:
            from zoneinfo import ZoneInfo  # seldom needed

            zone = ZoneInfo(suffix)
    return instant, zone, int("fold=1" in suffixes)


#: Maximum nesting of lists, dicts, sets and dataclasses. Low enough to avoid RecursionError in code that processes
#: decoded values (previews, rows).
MAX_DEPTH: Final = 100

_COLLECTIONS: Final = {"tuple": tuple, "set": set, "frozenset": frozenset}
#: Up to this many items are checked one by one, more all together.
_FEW: Final = 8
#: Above this many members, hashes are checked. n numbers, or tuples of them, that an attacker chose with equal hashes
#: would cost n² comparisons; hashes of texts and bytes are random (PYTHONHASHSEED).
_MANY: Final = 64
_UNGUESSED: Final[frozenset[type]] = frozenset({str, bytes})
_HASHED: Final = ("set", "frozenset", "dict")
#: Maximum number of members with equal hashes in a set or dict that is restored to run a job.
_SAME_HASH: Final = 100
#: The handle of a job, by name: it contains a client, which this layer must not import.
_HANDLE: Final = "palermo.client.handle.Job"
_NESTED: Final[frozenset[type]] = frozenset({list, dict, *_COLLECTIONS.values()})


class Format(Struct, frozen=True, kw_only=True):
    """The values that a serializer can write without a tag."""

    name: str
    #: The exact types of scalars and of dict keys.
    scalars: frozenset[type]
    keys: frozenset[type]
    #: The range of integers that need no tag.
    least: int
    most: int
    #: Whether nan and inf need a tag.
    finite: bool
    #: The key that marks a tag, which a user's dict must not have; "" if there is none.
    reserved: str
    #: Creates a tag from its kind, plain value, and dotted class name or "".
    wrap: Callable[[str, object, str], object]


class _Unwritable(Exception):
    """A value that can't be written. While it propagates, it collects the path from the end to the start."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []


def is_plain(value: Any, form: Format, room: int = MAX_DEPTH) -> bool:
    """Whether the value needs no tag. Numbers and text are checked by the encoder.

    Costs less than the encoding, since the types in a long list or dict are checked together.
    """
    kind, scalars = type(value), form.scalars
    if kind is dict:
        keys = form.keys
        if not room or (form.reserved and form.reserved in value):
            return False
        if len(value) > _FEW and keys.issuperset(map(type, value)) and scalars.issuperset(map(type, value.values())):
            return True
        for key, item in value.items():
            if type(key) not in keys:
                return False
            if type(item) not in scalars and not is_plain(item, form, room - 1):
                return False
        return True
    if kind is list:
        if not room:
            return False
        if len(value) > _FEW and scalars.issuperset(map(type, value)):
            return True
        for item in value:  # noqa: SIM110 - a generator costs twice as much
            if type(item) not in scalars and not is_plain(item, form, room - 1):
                return False
        return True
    return kind in scalars


def tagged(value: object, form: Format) -> object:
    """Return the value with tags in place of values that aren't plain.

    Raises EncodeError with the path of a value that can't be written.
    """
    try:
        return _tagged(value, form, MAX_DEPTH)
    except _Unwritable as error:
        raise EncodeError(f"{printable(path(value, error.steps[::-1]))} {error.reason}") from None


def path(value: object, steps: list[str]) -> str:
    """The readable name of a place in a value from `core.arguments.pack`, for error texts."""
    if isinstance(value, dict) and value.keys() == {"args", "kwargs"} and steps:
        text = steps[0].strip('["]') + "".join(steps[1:])
    else:
        root = "args" if isinstance(value, list) else "kwargs" if isinstance(value, dict) else "value"
        text = root + "".join(steps)
    return text if len(text) <= 200 else f"{text[:100]} … {text[-90:]}"


def step(key: object) -> str:
    """Return one step of a path, into a list or a dict."""
    text = f'"{key}"' if isinstance(key, str) else brief(key)
    return f"[{text if len(text) <= 60 else text[:60] + '…'}]"


def _tagged(value: Any, form: Format, room: int) -> object:
    kind = type(value)
    if kind is str:
        return _text(value)
    if kind is int:
        return value if form.least <= value <= form.most else form.wrap("int", hex(value), "")
    if kind is float:
        finite = not form.finite or value - value == 0
        return value if finite else form.wrap("float", repr(value), "")
    if kind in form.scalars:
        return value
    if kind in _SCALARS:
        name, write = _SCALARS[kind]
        try:
            return form.wrap(name, write(value), "")
        except ValueError as error:
            raise _Unwritable(str(error)) from None
    if not room:
        raise _Unwritable(f"is nested more than {MAX_DEPTH} levels deep, or contains itself; pass a flatter value.")
    if kind is list:
        return _items(value, form, room)
    if kind in _COLLECTIONS.values():
        return form.wrap(kind.__name__, _items(value, form, room), "")
    if kind is dict:
        if _plain_keys(value, form):
            return _fields(value, form, room)
        return form.wrap("dict", _pairs(value, form, room), "")
    if kind is Unrestored:
        return form.wrap(value.kind, _tagged(value.value, form, room), value.name)
    if isinstance(value, Enum):
        member = value.value if isinstance(value, Flag) else value.name
        return form.wrap("enum", _tagged(member, form, room - 1), dotted_name(kind))
    if is_dataclass(kind):
        if dotted_name(kind) == _HANDLE:
            raise _Unwritable("is a Job handle, which cannot be an argument; pass its .id.")
        values = {each.name: getattr(value, each.name) for each in fields(value) if hasattr(value, each.name)}
        return form.wrap("dataclass", _fields(values, form, room, "."), dotted_name(kind))
    raise _Unwritable(_refusal(kind, form))


def _plain_keys(value: dict[object, object], form: Format) -> bool:
    return (
        form.keys.issuperset(map(type, value))
        and not (form.reserved and form.reserved in value)
        and all(form.least <= key <= form.most for key in value if type(key) is int)
    )


def _items(values: Iterable[object], form: Format, room: int) -> list[object]:
    written: list[object] = []
    try:
        for value in values:
            written.append(_tagged(value, form, room - 1))  # noqa: PERF401 (its length is the index of the culprit)
    except _Unwritable as error:
        error.steps.append(step(len(written)) if isinstance(values, (list, tuple)) else "{…}")
        raise
    return written


def _fields(values: Mapping[Any, object], form: Format, room: int, dot: str = "") -> dict[object, object]:
    written: dict[object, object] = {}
    for key, value in values.items():
        try:
            written[_tagged(key, form, room - 1)] = _tagged(value, form, room - 1)
        except _Unwritable as error:
            error.steps.append(f"{dot}{key}" if dot else step(key))
            raise
    return written


def _pairs(values: Mapping[Any, object], form: Format, room: int) -> list[object]:
    written: list[object] = []
    for key, value in values.items():
        try:
            written.append([_tagged(key, form, room - 1), _tagged(value, form, room - 1)])
        except _Unwritable as error:
            error.steps.append(step(key))
            raise
    return written


def _text(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _Unwritable(
                f"is text with a lone surrogate, {value[:40]!r}, which UTF-8 cannot hold; "
                "pass bytes (os.fsencode for a file name)."
            ) from None
    return value


def _refusal(kind: type, form: Format) -> str:
    name = kind.__qualname__ if kind.__module__ == "builtins" else dotted_name(kind)
    for base in (*_SCALARS, str, int, float, list, dict, *_COLLECTIONS.values()):
        if issubclass(kind, base):
            return (
                f"is of type {name}, which would be restored as a plain {base.__name__}; pass a {base.__name__}"
                " instead."
            )
    return (
        f"is of type {name}, which {form.name} cannot hold. Pass plain values (text, numbers, lists, dicts, datetime, "
        "Decimal, UUID, bytes, enums, dataclasses), or an id to find it by."
    )


def _base64(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


#: By exact type: the kind, and the function that writes it.
_SCALARS: Final[dict[type, tuple[str, Callable[[Any], object]]]] = {
    datetime: ("datetime", instant_text),
    date: ("date", date.isoformat),
    time: ("time", instant_text),
    timedelta: ("timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
    Decimal: ("decimal", str),
    UUID: ("uuid", str),
    bytes: ("bytes", _base64),
    bytearray: ("bytearray", _base64),
}

#: By kind: the plain type, and the function that reads it.
_READERS: Final[dict[str, tuple[type, Callable[[Any], object]]]] = {
    "datetime": (str, read_datetime),
    "date": (str, date.fromisoformat),
    "time": (str, read_time),
    "timedelta": (list, lambda value: timedelta(*value)),
    "decimal": (str, Decimal),
    "uuid": (str, UUID),
    "bytes": (str, _bytes),
    "bytearray": (str, lambda text: bytearray(_bytes(text))),
    "int": (str, lambda text: int(text, 16)),
    "float": (str, float),
    "tuple": (list, tuple),
    "set": (list, set),
    "frozenset": (list, frozenset),
    "dict": (list, dict),
}


def restored(kind: object, value: Any, name: object, classes: Mapping[str, type]) -> object:
    """Return the value of a tag. `classes` contains the dataclasses and enums; FOR_DISPLAY returns them as Unrestored.

    Raises DecodeError for an unknown tag or a class that isn't allowed.
    """
    if kind in ("dataclass", "enum") and isinstance(name, str):
        return _instance(str(kind), value, name, classes)
    if not isinstance(kind, str) or kind not in _READERS:
        raise DecodeError(
            f"the body has a value of kind {brief(kind):.80}, which this version of Palermo does not support."
        )
    wanted, read = _READERS[kind]
    if type(value) is wanted:
        try:
            if kind in _HASHED and isinstance(value, list) and len(value) > _MANY:
                return _hashed(kind, value, classes)
            return read(value)
        except (ValueError, TypeError, ArithmeticError, LookupError, OSError):
            pass  # OSError: the time zone's name is a directory
    raise DecodeError(f"the body has a {kind} that cannot be read: {brief(value):.80}.")


def _hashed(kind: str, items: list[Any], classes: Mapping[str, type]) -> object:
    """A set or dict with many members. For FOR_DISPLAY, one that is expensive to build remains Unrestored."""
    keys = [key for key, _ in items] if kind == "dict" else items
    if not _UNGUESSED.issuperset(map(type, keys)):
        if classes is FOR_DISPLAY:
            # Sorted, so that equal sets give equal values.
            return Unrestored(kind, "", sorted(items, key=repr))
        hashes = sorted(map(hash, keys))
        if any(map(int.__eq__, hashes, hashes[_SAME_HASH:])):
            raise DecodeError(
                f"the body has a {kind} of {len(keys):,} members, more than {_SAME_HASH} of them with the same hash,"
                " so creating it would take too long. Pass a list, or members of text."
            )
    return _READERS[kind][1](items)


def display_map(pairs: list[tuple[Any, Any]]) -> object:
    """A map decoded for FOR_DISPLAY: a dict, or Unrestored if a dict would be expensive. Raises TypeError."""
    if len(pairs) > _MANY and not _UNGUESSED.issuperset(type(key) for key, _ in pairs):
        return Unrestored("dict", "", sorted(map(list, pairs), key=repr))
    return dict(pairs)


def _instance(kind: str, value: Any, name: str, classes: Mapping[str, type]) -> object:
    if classes is FOR_DISPLAY:
        return Unrestored(kind, name, value)
    cls = classes.get(name)
    if cls is None:
        short = name.rpartition(".")[2]
        raise DecodeError(
            f"the body has a value of {name!r:.120}, which this job does not accept. Annotate the parameter with it "
            f"(`order: {short:.60}`; `A | {short:.60}` for one of several), or pass it to Serializers.register_class."
        )
    try:
        if kind == "enum" and issubclass(cls, Enum):
            return cls(value) if issubclass(cls, Flag) else cls[value]
        if kind == "dataclass" and is_dataclass(cls) and isinstance(value, dict):
            return _dataclass(cls, value)
    except Exception as error:  # a user's __post_init__ may raise anything about a body that doesn't fit
        raise DecodeError(
            f"the body has a value that cannot become a {name}: {type(error).__name__}: {error}"
        ) from error
    raise DecodeError(f"the body has a {kind} of {name!r:.120}, which in this program is {cls.__name__}, not a {kind}.")


def _dataclass(cls: type[Any], values: dict[str, object]) -> object:
    """Create an instance with its constructor, so that new fields get their defaults.

    Fields that the constructor doesn't take are set afterwards. As with dataclasses.replace, __post_init__ runs again
    and should not change earlier results, and an InitVar without a default can't be restored.
    """
    computed = {each.name for each in fields(cls) if not each.init} & values.keys()
    made = cls(**{name: value for name, value in values.items() if name not in computed})
    for name in computed:
        object.__setattr__(made, name, values[name])
    return made


def too_deep(value: Any, room: int = MAX_DEPTH) -> bool:
    """Whether lists, dicts, tuples and sets are nested more than MAX_DEPTH levels deep."""
    if type(value) not in _NESTED:
        return False
    if not room:
        return True
    for items in (value, value.values()) if type(value) is dict else (value,):
        for item in items:
            if type(item) in _NESTED and too_deep(item, room - 1):
                return True
    return False
