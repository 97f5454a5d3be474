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


@pytest.mark.parametrize(
    "plain",
    [
        None,
        3,
        {},
        {"content_type": "application/json"},
        {"content_type": 3, "text": "1"},
        {"content_type": "application/msgpack", "base64": "%"},
    ],
)
def test_what_describes_no_value_is_none(plain: object) -> None:
    assert StoredResult.from_plain(plain) is None


def test_a_value_above_the_limit_is_refused_with_both_sizes() -> None:
    value = StoredResult("application/json", b"x" * 1_001)

    assert why_not_stored(value, 1_001) == ""
    assert "measures 1,001 bytes and the setting max_result allows 1,000" in why_not_stored(value, 1_000)


def test_how_a_job_went_is_remembered_without_what_it_returned() -> None:
    assert without_value(Succeeded(value=StoredResult("application/json", b"1"))) == Succeeded()
    assert without_value(Succeeded(refused="too large")) == Succeeded()
    assert without_value(Dropped("gone")) == Dropped("gone")
