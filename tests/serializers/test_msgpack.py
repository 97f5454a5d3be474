"""msgpack as other programs write it, and what is refused."""

from datetime import UTC, date, datetime

import msgpack
import pytest

from palermo.errors import DecodeError
from palermo.serializers.msgpack import EXTENSION, MsgpackSerializer

MSGPACK = MsgpackSerializer()


def tag(kind: object, **rest: object) -> bytes:
    packed: bytes = msgpack.packb({msgpack.ExtType(EXTENSION, b""): kind, **rest})
    return packed


def test_plain_values_are_plain_msgpack_with_any_keys() -> None:
    value = {"a": [1, b"\x00", None], 2: 0.5, "": "empty", "$palermo": 1, None: True}

    assert msgpack.unpackb(MSGPACK.dumps(value), strict_map_key=False) == value


def test_timestamps_and_extensions_of_other_programs_are_read() -> None:
    moment = datetime(2014, 11, 3, 9, tzinfo=UTC)
    extension = msgpack.ExtType(7, b"x")

    assert MSGPACK.loads(msgpack.packb([moment, extension], datetime=True), {}) == [moment, extension]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xc1", "not msgpack"),
        (b"\x93\x01", "not msgpack"),
        (b"\x01\x02", "not msgpack"),
        (b"\xdd\xff\xff\xff\xff", "not msgpack"),
        (b"\xa1\xff", "not msgpack"),
        (b"\x81\x91\x01\x02", "not msgpack"),
        (b"\x91" * 102 + b"\x01", "more than 100 deep"),
        (b"\x91" * 100_000 + b"\x01", "not msgpack|deep"),
        (tag("date", value="yesterday"), "a date that cannot be read"),
        (tag("socket", value=1), "of kind 'socket'"),
        (tag("date"), "no tag of Palermo"),
        (tag("date", value="2014-11-03", more=1), "no tag of Palermo"),
    ],
)
def test_a_body_that_is_not_palermos_msgpack_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(DecodeError, match=text):
        MSGPACK.loads(data, {})


def test_a_tag_is_a_map_with_a_key_of_extension_type_80() -> None:
    data = MSGPACK.dumps([date(2014, 11, 3)])

    assert msgpack.unpackb(data, strict_map_key=False) == [{msgpack.ExtType(80, b""): "date", "value": "2014-11-03"}]


def test_tags_in_each_other_without_end_are_refused() -> None:
    start = b"\x82\xc7\x00P\xa5tuple\xa5value\x91"

    for depth in (101, 300, 3_000, 300_000):
        with pytest.raises(DecodeError, match=r"deep|StackError"):
            MSGPACK.loads(start * depth + b"\x90", {})
