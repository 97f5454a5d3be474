"""Times as people write them."""

import re

import pytest

from palermo.core.times import parse_duration, parse_instant, parse_time

NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-12T13:46:40Z", NOW),
        (" 1970-01-12T14:46:40+01:00 ", NOW),
        ("1970-01-12T13:46:40.5+00:00", NOW + 0.5),
        ("1970-01-13T00Z", 1_036_800.0),
    ],
)
def test_an_instant_is_iso_8601_with_a_zone(text: str, seconds: float) -> None:
    assert parse_instant(text) == seconds
    assert parse_time(text, NOW, ago=True) == parse_time(text, NOW, ago=False) == seconds


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("soon", "'soon' is not a time; write 5m or 2d from now, or 2026-12-01T09:00Z."),
        ("", "'' is not a time"),
        ("2026-12-01T09:00", "'2026-12-01T09:00' has no time zone; write 2026-12-01T09:00Z or 2026-12-01T09:00+01:00."),
        ("2026-12-01", "'2026-12-01' has no time zone; write 2026-12-01T00:00Z or 2026-12-01T00:00+01:00."),
        ("x" * 1_000, f"'{'x' * 40}' is not a time"),
    ],
)
def test_what_is_no_time_is_refused_in_words(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        parse_time(text, NOW, ago=False)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("1h30m", 5_400), ("2d", 172_800), ("1.5", 1.5)]
)
def test_a_duration_is_read_and_goes_before_or_after_now(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert (parse_time(text, NOW, ago=True), parse_time(text, NOW, ago=False)) == (NOW - seconds, NOW + seconds)


@pytest.mark.parametrize("text", ["", "m", "x", "5 minutes", "-5", "1m1h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)
