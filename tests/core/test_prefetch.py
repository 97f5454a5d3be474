import pytest

from palermo.core.prefetch import MAX_WAIT_BEHIND, NO_PREFETCH, AdaptivePrefetch, Prefetch
from palermo.errors import SettingInvalid


@pytest.mark.parametrize(
    ("text", "meant"),
    [("1", NO_PREFETCH), ("8", Prefetch(8)), ("1000", Prefetch(1000)), ("auto", Prefetch(16, at_once=False))],
)
def test_a_number_or_auto(text: str, meant: Prefetch) -> None:
    assert Prefetch.parse(text) == meant
    assert str(meant) == text


@pytest.mark.parametrize("text", ["", "0", "-1", "1001", "1.5", "many", "Auto", "٣", "9" * 500])
def test_anything_else_is_refused_in_words(text: str) -> None:
    with pytest.raises(SettingInvalid, match=r'it is a number from 1 to 1,000, or "auto"') as raised:
        Prefetch.parse(text)
    assert len(str(raised.value)) < 150


def after(prefetch: str, *seconds: float) -> int:
    ahead = AdaptivePrefetch(Prefetch.parse(prefetch))
    for each in seconds:
        ahead.ended(each)
    return ahead.allowed


@pytest.mark.parametrize(
    ("prefetch", "seconds", "allowed"),
    [
        ("auto", [], 1),
        ("auto", [0.0005] * 7, 1),
        ("auto", [0.0005] * 8, 16),
        ("auto", [0.004] * 20, 6),
        ("auto", [0.015] * 20, 2),
        ("auto", [0.025] * 20, 1),
        ("auto", [0.0005] * 8 + [0.03], 1),
        ("auto", [0.0005] * 8 + [0.03] + [0.0005] * 7, 1),
        ("auto", [0.0005] * 8 + [0.03] + [0.0005] * 40, 16),
        ("auto", [0.0005] * 8 + [0.012] * 20, 2),
        ("5", [], 5),
        ("5", [0.0005], 5),
        ("5", [0.03], 1),
        ("5", [0.03] + [0.0001] * 30, 5),
        ("1", [0.0001] * 30, 1),
    ],
)
def test_so_many_are_held_after_jobs_that_took_so_long(prefetch: str, seconds: list[float], allowed: int) -> None:
    assert after(prefetch, *seconds) == allowed


def test_what_waits_would_have_its_turn_in_time() -> None:
    for tenths in range(1, 200):
        seconds = tenths / 10_000
        assert (after("auto", *[seconds] * 60) - 1) * seconds <= MAX_WAIT_BEHIND * 1.01


def test_a_duration_that_wavers_does_not_change_it_each_time() -> None:
    ahead = AdaptivePrefetch(Prefetch.parse("auto"))
    changes, before = 0, 1
    for number in range(400):
        ahead.ended(0.004 if number % 2 else 0.006)
        changes += ahead.allowed != before
        before = ahead.allowed
    assert changes <= 3


def test_a_job_that_still_runs_may_be_known_to_be_slow() -> None:
    ahead = AdaptivePrefetch(Prefetch.parse("8"))
    ahead.slow()
    assert ahead.allowed == 1
