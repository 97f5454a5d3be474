"""What becomes of the outputs that a step takes."""

import json

import pytest

from palermo.core.step_values import Output, Value, as_json, loaded

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
