"""Arguments as one value, and back."""

import pytest

from palermo.core.arguments import pack, preview, unpack
from palermo.errors import DecodeError


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [([], {}), ([1, "a"], {}), ([], {"to": "x"}), ([1], {"to": "x"}), ([{"a": 1}], {}), ([[1, 2]], {}), ([None], {})],
)
def test_arguments_survive_the_round_trip(args: list[object], kwargs: dict[str, object]) -> None:
    assert unpack(*pack(args, kwargs)) == (args, kwargs)


@pytest.mark.parametrize(
    ("value", "args", "kwargs"),
    [
        *((None, [], {}), ([], [], {}), (7, [7], {}), ("x", ["x"], {}), ({}, [], {}), ({"a": 1}, [], {"a": 1})),
        ({1: 2}, [{1: 2}], {}),
    ],
)
def test_the_shape_of_a_foreign_body_says_its_use(value: object, args: list[object], kwargs: dict[str, object]) -> None:
    assert unpack(value, "") == (args, kwargs)
    assert unpack(value, "", one=True) == ([value], {})


def test_a_header_that_promises_another_shape_is_an_error() -> None:
    both: list[object] = [[1], {"args": 1}, {"args": [], "other": 1}, {"kwargs": {1: 2}}]
    for value, header in (*((value, "both") for value in both), ([], "some")):
        with pytest.raises(DecodeError):
            unpack(value, header)


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ([], {}, ""),
        (["x.png", 3], {"width": 640}, "'x.png', 3, width=640"),
        ([[1, {"a": b"b"}]], {}, "[1, {'a': b'b'}]"),
        ([list(range(500))], {}, "<list of 500>"),
        *((["x" * 98], {}, "'" + "x" * 98 + "'"), (["x" * 99], {}, "'" + "x" * 96 + "...")),
        (["x" * 60, "y" * 60], {}, "'" + "x" * 60 + "', '" + "y" * 32 + "..."),
    ],
)
def test_a_preview_has_at_most_100_characters(args: list[object], kwargs: dict[str, object], text: str) -> None:
    assert preview(args, kwargs) == text
    assert len(text) <= 100


def test_a_preview_does_not_stop_at_a_value_without_a_repr() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert preview([Shy()], {}) == "<Shy>"
