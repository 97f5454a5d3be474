"""The bytes themselves: what other languages read and write as JSON and as msgpack."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal, NewType, Optional, TypedDict, TypeVar, get_type_hints
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack
import pytest

from palermo.contract.class_hints import classes_in, dotted_name
from palermo.contract.serialization import FOR_DISPLAY, Accept, Serializer, Serializers, Unrestored
from palermo.core.message import Message
from palermo.errors import DecodeError
from palermo.serializers.json import JsonSerializer
from palermo.serializers.msgpack import EXTENSION, MsgpackSerializer
from tests.serializers.samples import CLASSES, Color, Line, Mode, Order, Rights, Size

JSON, MSGPACK = JsonSerializer(), MsgpackSerializer()

#: The beginning of a tuple with one member in msgpack.
_TAGGED = b"\x82\xc7\x00P\xa5tuple\xa5value\x91"


def tag(kind: object, **rest: object) -> bytes:
    """A tag of Palermo in msgpack."""
    packed: bytes = msgpack.packb({msgpack.ExtType(EXTENSION, b""): kind, **rest})
    return packed


def test_plain_values_are_plain_compact_json() -> None:
    assert JSON.dumps([1, "für", {"a": [None, True, 0.5]}]) == '[1,"für",{"a":[null,true,0.5]}]'.encode()


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        (datetime(2014, 11, 3, 9, tzinfo=UTC), {"$palermo": "datetime", "value": "2014-11-03T09:00:00+00:00"}),
        (
            datetime(2014, 11, 3, 9, tzinfo=ZoneInfo("Europe/Rome")),
            {"$palermo": "datetime", "value": "2014-11-03T09:00:00+01:00[Europe/Rome]"},
        ),
        (datetime(2014, 11, 3, fold=1), {"$palermo": "datetime", "value": "2014-11-03T00:00:00[fold=1]"}),
        (date(2014, 11, 3), {"$palermo": "date", "value": "2014-11-03"}),
        (timedelta(days=1, seconds=2), {"$palermo": "timedelta", "value": [1, 2, 0]}),
        (Decimal("1.20"), {"$palermo": "decimal", "value": "1.20"}),
        (UUID(int=1), {"$palermo": "uuid", "value": "00000000-0000-0000-0000-000000000001"}),
        (b"\x00\xff", {"$palermo": "bytes", "value": "AP8="}),
        ((1, 2), {"$palermo": "tuple", "value": [1, 2]}),
        ({1}, {"$palermo": "set", "value": [1]}),
        (float("inf"), {"$palermo": "float", "value": "inf"}),
        ({1: "a"}, {"$palermo": "dict", "value": [[1, "a"]]}),
        ({"$palermo": "date"}, {"$palermo": "dict", "value": [["$palermo", "date"]]}),
        (Color.BLUE, {"$palermo": "enum", "class": "tests.serializers.samples.Color", "value": "BLUE"}),
        (Rights(3), {"$palermo": "enum", "class": "tests.serializers.samples.Rights", "value": 3}),
        (
            Line("tea", Decimal(2)),
            {
                "$palermo": "dataclass",
                "class": "tests.serializers.samples.Line",
                "value": {"article": "tea", "price": {"$palermo": "decimal", "value": "2"}},
            },
        ),
    ],
)
def test_the_tags_are_those_of_the_wire_format(value: object, wire: object) -> None:
    assert json.loads(JSON.dumps([value])) == [wire]
    assert JSON.loads(json.dumps([wire]).encode(), CLASSES) == [value]


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a": [1, 2.5, null]}', {"a": [1, 2.5, None]}),
        (b"\xef\xbb\xbf[1]", [1]),
        (b' [ "\\u00fc" ]\n', ["ü"]),
        (b'["$palermo"]', ["$palermo"]),
        (b'"text"', "text"),
        (b"[9007199254740993]", [9007199254740993]),
        (b"[18446744073709551616, -9223372036854775809]", [2**64, -(2**63) - 1]),
        (b"1" + b"0" * 400, 10**400),
        (b"[1e400, -0.0, 5e-324]", [float("inf"), -0.0, 5e-324]),
        (b'"\\ud83d"', "\ud83d"),
        (b'"\\ud83d\\ude00"', "\N{GRINNING FACE}"),
        (b'{"a": 1, "a": 2}', {"a": 2}),
    ],
)
def test_plain_json_of_other_languages_reads_as_it_is(data: bytes, value: object) -> None:
    assert JSON.loads(data, {}) == value


@pytest.mark.parametrize(
    ("serializer", "data", "text"),
    [
        (JSON, b"{", "not JSON"),
        (JSON, b"\xff\xfe", "not JSON"),
        (JSON, b'"\xed\xa0\x80"', "not JSON"),
        (JSON, b'"\x01"', "not JSON"),
        (JSON, b"[01]", "not JSON"),
        (JSON, b"[NaN]", "NaN is not a JSON value"),
        (JSON, b"[-Infinity]", "-Infinity is not a JSON value"),
        (JSON, b"1" * 5_000, "not JSON"),
        (JSON, b"[" * 100_000, "more than 100 levels deep"),
        (JSON, b"[" * 500_000 + b"]" * 500_000, "more than 100 levels deep"),
        (JSON, b"[" * 102 + b"]" * 102, "more than 100 levels deep"),
        (JSON, b'{"a":' * 102 + b"1" + b"}" * 102, "more than 100 levels deep"),
        (JSON, b'{"$palermo": "socket", "value": 1}', "of kind 'socket'"),
        (JSON, b'{"$palermo": ["x"], "value": 1}', "of kind"),
        (JSON, b'{"$palermo": "date"}', "that Palermo did not write"),
        (JSON, b'{"$palermo": "date", "value": "2014-11-03", "more": 1}', "that Palermo did not write"),
        (JSON, b'{"$palermo": "date", "value": "yesterday"}', "a date that cannot be read: 'yesterday'"),
        (JSON, b'{"$palermo": "datetime", "value": "2014-11-03T09:00:00+01:00[Atlantis/Plato]"}', "cannot be read"),
        (JSON, b'{"$palermo": "datetime", "value": "2014-11-03T09:00:00+01:00[../../etc/passwd]"}', "cannot be read"),
        (JSON, b'{"$palermo": "bytes", "value": "?"}', "cannot be read"),
        (JSON, b'{"$palermo": "timedelta", "value": [1e300, 0, 0]}', "cannot be read"),
        (JSON, b'{"$palermo": "set", "value": [[]]}', "cannot be read"),
        (JSON, b'{"$palermo": "dict", "value": [1]}', "cannot be read"),
        (JSON, b'{"$palermo": "int", "value": "xyz"}', "cannot be read"),
        (JSON, b'{"$palermo": "tuple", "value": ' * 400 + b"[]" + b"}" * 400, "cannot be read|deep"),
        *((MSGPACK, data, "not msgpack") for data in (b"\xc1", b"\x93\x01", b"\x01\x02", b"\xdd\xff\xff\xff\xff")),
        *((MSGPACK, data, "not msgpack") for data in (b"\xa1\xff", b"\x81\x91\x01\x02")),
        (MSGPACK, b"\x91" * 102 + b"\x01", "more than 100 levels deep"),
        (MSGPACK, b"\x91" * 100_000 + b"\x01", "not msgpack|deep"),
        (MSGPACK, tag("date", value="yesterday"), "a date that cannot be read"),
        (MSGPACK, tag("socket", value=1), "of kind 'socket'"),
        (MSGPACK, tag("date"), "that Palermo did not write"),
        (MSGPACK, tag("date", value="2014-11-03", more=1), "that Palermo did not write"),
        # Tags in each other.
        *((MSGPACK, _TAGGED * depth + b"\x90", r"deep|StackError") for depth in (101, 300, 3_000, 300_000)),
    ],
    ids=lambda value: str(getattr(value, "name", value))[:40],
)
def test_a_body_that_is_not_palermos_is_refused(serializer: Serializer, data: bytes, text: str) -> None:
    with pytest.raises(DecodeError, match=text):
        serializer.loads(data, {})


def test_an_instant_outlives_a_change_of_its_zones_rules() -> None:
    written_when_rome_was_at_plus_three = b'{"$palermo": "datetime", "value": "2014-11-03T09:00:00+03:00[Europe/Rome]"}'

    assert JSON.loads(written_when_rome_was_at_plus_three, {}) == datetime(2014, 11, 3, 6, tzinfo=UTC)


def test_looking_leaves_classes_as_names_and_writes_them_back_as_they_were() -> None:
    data = JSON.dumps([Color.RED, Line("tea", Decimal(2))])

    seen = JSON.loads(data, FOR_DISPLAY)

    assert seen == [
        Unrestored("enum", "tests.serializers.samples.Color", "RED"),
        Unrestored("dataclass", "tests.serializers.samples.Line", {"article": "tea", "price": Decimal(2)}),
    ]
    line = "tests.serializers.samples.Line(article='tea', price=Decimal('2'))"
    assert repr(seen) == f"[tests.serializers.samples.Color.RED, {line}]"
    assert JSON.dumps(seen) == data


def test_plain_values_are_plain_msgpack_with_any_keys() -> None:
    value = {"a": [1, b"\x00", None], 2: 0.5, "": "empty", "$palermo": 1, None: True}

    assert msgpack.unpackb(MSGPACK.dumps(value), strict_map_key=False) == value


def test_timestamps_and_extensions_of_other_programs_are_read() -> None:
    moment = datetime(2014, 11, 3, 9, tzinfo=UTC)
    extension = msgpack.ExtType(7, b"x")

    assert MSGPACK.loads(msgpack.packb([moment, extension], datetime=True), {}) == [moment, extension]


def test_a_tag_of_msgpack_is_a_map_with_a_key_of_extension_type_80() -> None:
    data = MSGPACK.dumps([date(2014, 11, 3)])

    assert msgpack.unpackb(data, strict_map_key=False) == [{msgpack.ExtType(80, b""): "date", "value": "2014-11-03"}]


# -- the dataclasses and enums that come back, and how they are named


T = TypeVar("T")
Number = NewType("Number", Order)
PREFIX = "tests.serializers.samples."
BOTH = pytest.mark.parametrize("serializer", [JsonSerializer(), MsgpackSerializer()], ids=["json", "msgpack"])


class Parcel(TypedDict):
    line: Line


@dataclass
class Node:
    children: "list[Node]"
    color: Color


@dataclass
class Grown:
    name: str
    added_since: int = 5


@dataclass
class Picky:
    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise RuntimeError("negative")


@dataclass
class Secretive:
    shown: int
    hidden: InitVar[int]
    cache: list[int] = field(init=False, default_factory=list)


@pytest.mark.parametrize(
    ("hint", "names"),
    [
        (int, ""),
        (None, ""),
        ("Order", ""),
        (T, ""),
        (Color, "Color"),
        (Optional[Color], "Color"),  # noqa: UP045
        (Color | Line | None, "Color Line"),
        (list[Line], "Line"),
        (dict[str, list[Line | None]], "Line"),
        (tuple[Size, ...], "Size"),
        (Mapping[Mode, int], "Mode"),
        (Annotated[Line, "sold"], "Line"),
        (Literal[Rights.READ], "Rights"),
        (Number, "Color Line Order Rights"),
        (Parcel, "Line"),
        (Order, "Color Line Order Rights"),
    ],
)
def test_classes_are_found_in_annotations(hint: object, names: str) -> None:
    assert sorted(classes_in([hint])) == [PREFIX + name for name in names.split()]


def test_classes_of_a_whole_signature_are_found_also_those_in_themselves() -> None:
    def job(order: Optional[list[Order]], node: Node, *, size: "Size" = Size.SMALL) -> None: ...  # noqa: UP045

    assert set(classes_in(get_type_hints(job).values()).values()) == {Order, Line, Color, Rights, Size, Node}


@BOTH
def test_a_class_that_was_neither_named_nor_registered_is_not_restored(serializer: Serializer) -> None:
    with pytest.raises(DecodeError, match=r"samples\.Color', which this job does not accept\. .*`order: Color`"):
        serializer.loads(serializer.dumps([Color.RED]), {})
    registry = Serializers.default()
    registry.register_class(Color)
    made = registry.encode([Color.RED], {}, job="x", id="1", serializer=serializer.name)
    message = Message(id="1", queue="jobs", job="x", body=made.body, content_type=made.content_type)
    assert registry.decode(message, accept=Accept.default()) == [Color.RED]


@BOTH
def test_new_fields_get_defaults_and_those_of_no_constructor_are_restored(serializer: Serializer) -> None:
    before = serializer.dumps([Grown("x")]).replace(b',"added_since":5', b"")
    order = Order(1, Color.RED)
    order.total = Decimal("9.90")

    assert serializer.loads(before, classes_in([Grown])) == [Grown("x", 5)]
    assert serializer.loads(serializer.dumps(order), classes_in([Order])) == order


@BOTH
def test_a_value_that_its_class_refuses_is_a_decode_error(serializer: Serializer) -> None:
    picky = Picky(1)
    picky.size = -1

    with pytest.raises(DecodeError, match=r"cannot become a .*Picky: RuntimeError: negative"):
        serializer.loads(serializer.dumps(picky), classes_in([Picky]))
    with pytest.raises(DecodeError, match=r"cannot become a .*Secretive: TypeError: .*hidden"):
        serializer.loads(serializer.dumps(Secretive(1, 2)), classes_in([Secretive]))


@pytest.mark.parametrize(
    "tag",
    [
        b'{"$palermo": "enum", "class": "tests.serializers.samples.Color", "value": "GREEN"}',
        b'{"$palermo": "enum", "class": "tests.serializers.samples.Color", "value": ["RED"]}',
        b'{"$palermo": "enum", "class": "tests.serializers.samples.Rights", "value": 64}',
        b'{"$palermo": "enum", "class": "tests.serializers.samples.Line", "value": "RED"}',
        b'{"$palermo": "dataclass", "class": "tests.serializers.samples.Color", "value": {}}',
        b'{"$palermo": "dataclass", "class": "tests.serializers.samples.Line", "value": {"colour": 1}}',
        b'{"$palermo": "dataclass", "class": "tests.serializers.samples.Line", "value": [1]}',
        b'{"$palermo": "dataclass", "class": "os.system", "value": {}}',
        b'{"$palermo": "dataclass", "value": {}}',
    ],
)
def test_a_tag_that_does_not_suit_the_class_is_a_decode_error(tag: bytes) -> None:
    with pytest.raises(DecodeError, match="the body has a"):
        JsonSerializer().loads(tag, classes_in([Order]))


def test_a_class_is_named_by_its_module_also_if_that_is_run(tmp_path: Path) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    code = "from palermo.contract.class_hints import dotted_name\nclass Cart: ...\nprint(dotted_name(Cart))\n"
    (package / "__init__.py").write_text("")
    (package / "tasks.py").write_text(code)

    def run(*how: str) -> str:
        return subprocess.run([sys.executable, *how], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert dotted_name(Color) == "tests.serializers.samples.Color"
    assert run("-m", "shop.tasks").strip() == "shop.tasks.Cart"
    assert run("shop/tasks.py").strip() == "tasks.Cart"
    assert run("-c", code).strip() == "__main__.Cart"
