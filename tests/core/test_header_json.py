"""Header values in the file: whatever a header may hold comes back the same."""

from datetime import timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palermo.core.header_json import dumps, loads
from palermo.errors import EncodeError, StoreInvalid

ANY_TEXT = st.text(st.characters())
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | ANY_TEXT
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.datetimes().map(lambda at: at.replace(fold=0))
    | st.datetimes().map(lambda at: at.replace(fold=0, tzinfo=timezone(timedelta(hours=5, minutes=30)))),
    lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT | st.just("$"), inner),
    max_leaves=20,
)


@given(st.dictionaries(ANY_TEXT | st.just("$"), VALUES))
def test_every_value_comes_back_the_same(values: dict[str, Any]) -> None:
    text = dumps(values)

    assert text.isascii()
    assert repr(loads(text)) == repr(values)


@pytest.mark.parametrize(
    "value",
    [2**64, -(2**20_000), float("inf"), -0.0, Decimal("NaN"), {"$": "bytes", "v": "AA=="}, {"$": {"$": 1}}, "\0\ud800"],
    ids=range(8),
)
def test_odd_values_come_back_the_same(value: Any) -> None:
    (found,) = loads(dumps({"odd": value})).values()

    assert (type(found), found == value or str(found) == str(value)) == (type(value), True)


@pytest.mark.parametrize("value", [object(), {1, 2}, {1: "a"}, 1j], ids=["object", "set", "number as name", "complex"])
def test_what_no_header_can_hold_is_refused_by_name(value: Any) -> None:
    with pytest.raises(EncodeError, match=r"header \['tenant'\]\[0\]"):
        dumps({"tenant": [value]})
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(EncodeError, match="nested too deeply"):
        dumps({"endless": endless})


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a":{"$":"moon"}}', '{"a":{"$":"decimal","v":"x"}}', '{"a":{"$":"int"}}']
)
def test_headers_changed_by_hand_are_said_to_be_unreadable(text: str) -> None:
    with pytest.raises(StoreInvalid, match="headers of a message"):
        loads(text)
