"""The bytes themselves: what other languages read and write as JSON and as msgpack."""

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack
import pytest

from palermo.contract.serialization import FOR_DISPLAY, Serializer, Unrestored
from palermo.errors import DecodeError
from palermo.serializers.json import JsonSerializer
from palermo.serializers.msgpack import EXTENSION, MsgpackSerializer
from tests.serializers.samples import CLASSES, Color, Line, Rights

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
        (JSON, b"[" * 100_000, "more than 100 deep"),
        (JSON, b"[" * 500_000 + b"]" * 500_000, "more than 100 deep"),
        (JSON, b"[" * 102 + b"]" * 102, "more than 100 deep"),
        (JSON, b'{"a":' * 102 + b"1" + b"}" * 102, "more than 100 deep"),
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
        (MSGPACK, b"\x91" * 102 + b"\x01", "more than 100 deep"),
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
