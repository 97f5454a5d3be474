"""Bodies that somebody made in order to cost much: they are shown within bounds, and refused where they would run."""

import json
from decimal import Decimal
from typing import cast

import msgpack
import pytest

from palermo.contract.rows import MAX_SHOWN, job_row
from palermo.contract.serialization import Accept, Serializers, Unrestored
from palermo.core.lifecycle import JobState
from palermo.core.message import Message
from palermo.errors import BodyTooLarge, DecodeError

SERIALIZERS = Serializers.default()

#: The modulus of numbers' hashes: its multiples all hash to 0.
P = 2**61 - 1
MANY = 2_000


def tag(kind: str, value: object) -> object:
    return {"$palermo": kind, "value": value}


def body(value: object, **more: str) -> Message:
    return Message(id="1", queue="jobs", job="shop.mail", body=json.dumps([value]).encode(), **more)  # type: ignore[arg-type]


#: Members that have the same hash, as they are written.
_COLLIDING = {
    "numbers": [n * P for n in range(MANY)],
    "decimals": [tag("decimal", str(n * P)) for n in range(MANY)],
    "tuples": [tag("tuple", [n * P, 1]) for n in range(MANY)],
    "ids": [tag("uuid", f"{n * P:032x}") for n in range(MANY)],
    "spans": [tag("tuple", [tag("frozenset", [n * P])]) for n in range(MANY)],
}


@pytest.mark.parametrize("kind", ["set", "frozenset", "dict"])
@pytest.mark.parametrize("of", _COLLIDING)
def test_members_that_share_one_hash_freeze_nobody(kind: str, of: str) -> None:
    members = _COLLIDING[of]
    message = body(tag(kind, [[member, 1] for member in members] if kind == "dict" else members))

    [looked] = cast(list[object], SERIALIZERS.decode_for_display(message))
    row = job_row(message, JobState.PENDING, SERIALIZERS)
    with pytest.raises(DecodeError, match="with the same hash"):
        SERIALIZERS.decode(message, accept=Accept.default())

    assert isinstance(looked, Unrestored)
    assert (looked.kind, len(looked.value)) == (kind, MANY)  # type: ignore[arg-type]
    assert row["preview"] == f"<{kind} of {MANY}>"
    assert row["args"][0]


def test_a_msgpack_map_of_colliding_keys_is_shown_and_not_built() -> None:
    # Within 64 bits there are few multiples of P, but floats have more.
    colliding = msgpack.packb([dict.fromkeys((float(n) * 2.0**61 for n in range(1, 500)), 1)])
    message = Message(id="1", queue="jobs", job="shop.mail", body=colliding, content_type="application/msgpack")

    [looked] = cast(list[object], SERIALIZERS.decode_for_display(message))

    assert isinstance(looked, Unrestored)
    assert job_row(message, JobState.PENDING, SERIALIZERS)["preview"] == "<dict of 499>"


@pytest.mark.parametrize("serializer", ["json", "msgpack"])
@pytest.mark.parametrize(
    "value",
    [
        *(set(range(10_000)), {n: str(n) for n in range(10_000)}, frozenset(Decimal(n) for n in range(1_000))),
        *({2**n for n in range(2_000)}, {str(n) for n in range(1_000)}, {f"k{n}": n for n in range(1_000)}),
    ],
    ids=["numbers", "numbered", "decimals", "powers", "texts", "named"],
)
def test_honest_sets_of_many_run_and_are_written_again_as_they_were(serializer: str, value: object) -> None:
    encoded = SERIALIZERS.encode([value], {}, job="shop.mail", id="1", serializer=serializer)
    message = Message(id="1", queue="jobs", job="shop.mail", body=encoded.body, content_type=encoded.content_type)
    assert SERIALIZERS.decode(message, accept=Accept.default()) == [value]

    looked = SERIALIZERS.decode_for_display(message)
    again = SERIALIZERS.encode(looked, {}, job="shop.mail", id="1", serializer=serializer)  # type: ignore[arg-type]
    second = Message(id="1", queue="jobs", job="shop.mail", body=again.body, content_type=again.content_type)
    assert SERIALIZERS.decode(second, accept=Accept.default()) == [value]
    assert SERIALIZERS.decode_for_display(second) == looked


@pytest.mark.parametrize("compression", ["", "gzip", "zstd"])
def test_only_what_is_small_is_decoded_in_order_to_be_shown_by_a_server(compression: str) -> None:
    encoded = SERIALIZERS.encode(["x" * 10_000_000], {}, job="shop.mail", id="1", compression=compression)
    body, preview = encoded.body, "'xxx'..."
    message = Message(id="1", queue="jobs", job="shop.mail", body=body, content_encoding=compression, preview=preview)
    with pytest.raises(BodyTooLarge):
        SERIALIZERS.decode_for_display(message, most=MAX_SHOWN)

    row = job_row(message, JobState.PENDING, SERIALIZERS, max_bytes=MAX_SHOWN)

    assert (row["args"], row["kwargs"], row["preview"]) == (None, None, "'xxx'...")
    assert job_row(message, JobState.PENDING, SERIALIZERS)["args"] == ["x" * 10_000_000]


@pytest.mark.parametrize(
    "value",
    [
        *(tag("decimal", "1e999999999"), tag("decimal", "9" * 50_000), tag("int", "0x" + "f" * 50_000)),
        *(tag("timedelta", [10**300, 0, 0]), tag("datetime", "9999-12-31T23:59:59+23:59[../../etc/passwd]")),
        tag("datetime", "[" * 10_000),
        tag("set", [tag("decimal", "1e999999999"), tag("decimal", "-1e999999999")]),
        *(tag("set", [tag("list", [])] * 100), tag("dict", [[[1], 2]] * 100), tag("dict", [1] * 100)),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_values_without_bounds_are_shown_or_refused_by_name(value: object) -> None:
    row = job_row(body(value), JobState.PENDING, SERIALIZERS)

    assert len(json.dumps(row)) < 300_000
