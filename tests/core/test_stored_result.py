"""The value that a job returned, as the journal keeps it."""

import json

import pytest

from palermo.core.lifecycle import Dropped, StoredResult, Succeeded, result_of_record, why_not_stored, without_value


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
