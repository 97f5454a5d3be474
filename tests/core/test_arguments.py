"""Arguments, the outputs that a step takes and the value that a job returned, each as one value, and back."""

import json

import pytest

from palermo.core.arguments import pack, preview, unpack
from palermo.core.lifecycle import Dropped, StoredResult, Succeeded, result_of_record, why_not_stored, without_value
from palermo.core.step_values import Output, Value, as_json, loaded
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


MARK = "~output-x-"


def value(content: object, *outputs: Output, kind: str = "application/json") -> Value:
    return Value(kind, json.dumps(content).encode(), MARK if outputs else "", outputs=outputs)


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        (value([1]), [1]),
        (value([MARK + "0", {"a": [MARK + "1"]}], Output(value("é")), Output()), ["é", {"a": [None]}]),
        (value([MARK + "0"], Output(members=(Output(value(1)), Output(), Output(value([]))))), [[1, None, []]]),
        (value([MARK + "0"], Output(value({"in": MARK + "0"}, Output(value(MARK + "0"))))), [{"in": MARK + "0"}]),
    ],
)
def test_outputs_that_are_json_take_the_places_of_their_marks(taken: Value, expected: object) -> None:
    text = as_json(taken)

    assert text is not None
    assert json.loads(text) == expected
    assert loaded(taken, lambda one: json.loads(one.body)) == expected


@pytest.mark.parametrize(
    "output",
    [
        Output(value(1, kind="application/msgpack")),
        Output(members=(Output(value(1)), Output(value(1, kind="application/msgpack")))),
        Output(value([MARK + "0"], Output(refused="too large"))),
    ],
)
def test_other_outputs_are_not_joined(output: Output) -> None:
    assert as_json(value([MARK + "0"], output)) is None
    assert as_json(value([MARK + "0"], Output(value(1)), kind="application/msgpack")) is None


@pytest.mark.parametrize(
    "value",
    [
        StoredResult("application/json", b'{"a": "\xc3\xbc", "b": [1, null]}'),
        StoredResult("application/json", b""),
        StoredResult("application/msgpack", bytes(range(256))),
    ],
)
def test_a_value_survives_the_journal(value: StoredResult) -> None:
    assert result_of_record({"kind": "succeeded", "result": json.loads(json.dumps(value.to_plain()))}) == value


def test_what_describes_no_value_is_none() -> None:
    for plain in (None, 3, {}, {"content_type": "application/json"}, {"content_type": 3, "text": "1"}):
        assert StoredResult.from_plain(plain) is None
    assert StoredResult.from_plain({"content_type": "application/msgpack", "base64": "%"}) is None


def test_a_value_above_the_limit_is_refused_and_how_a_job_went_remembered() -> None:
    value = StoredResult("application/json", b"x" * 1_001)

    assert why_not_stored(value, 1_001) == ""
    assert "has 1,001 bytes, but max_result allows 1,000" in why_not_stored(value, 1_000)
    assert without_value(Succeeded(value=StoredResult("application/json", b"1"))) == Succeeded()
    assert without_value(Succeeded(refused="too large")) == Succeeded()
    assert without_value(Dropped("gone")) == Dropped("gone")
