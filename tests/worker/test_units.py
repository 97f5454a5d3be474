"""The worker's small rules: titles, pauses, trimming, limits."""

import pytest

from palermo.client.failed_queues import retention_judge
from palermo.contract.sweep import Keep, Remove, Stop
from palermo.core.failure import Failure
from palermo.core.message import Message
from palermo.errors import SettingInvalid
from palermo.worker.limits import Limits
from palermo.worker.parent.broker_session import backoff
from palermo.worker.process import SlotTitle


@pytest.mark.parametrize(
    ("attempt", "chance", "seconds"),
    [(1, 0.0, 0.25), (1, 1.0, 0.5), (4, 1.0, 4.0), (7, 0.0, 15.0), (10_000, 1.0, 30.0)],
)
def test_pauses_double_up_to_30_seconds_and_half_is_chance(attempt: int, chance: float, seconds: float) -> None:
    assert backoff(attempt, chance) == seconds


def test_a_slots_title_names_its_job_unless_there_are_hundreds_a_second() -> None:
    shown: list[str] = []
    title = SlotTitle(1, show=shown.append)

    title.working("shop.mail.send", "7c9e", 0.0)
    assert title.stale
    title.idle()
    assert not title.stale
    for number in range(500):
        title.working("job", str(number), 7 + number / 1_000)
    title.working("job", "next", 8.0)

    assert shown[0].startswith("palermo slot 1: shop.mail.send 7c9e since ")
    assert shown[1] == "palermo slot 1: idle"
    assert shown[-2] == "palermo slot 1: many short jobs"
    assert "job next since" in shown[-1]
    assert len(shown) < 30


def _failed(at: int | None) -> Message:
    failure = None if at is None else Failure(exception_class="E", message="", stack_trace="", failed_at=at)
    return Message(id="1", queue="q", job="j", failure=failure)


@pytest.mark.parametrize(
    ("surplus", "before", "verdicts"),
    [
        (2, None, [Remove(), Remove(), Stop()]),
        (0, 150.0, [Remove(), Stop()]),
        (2, 150.0, [Remove(), Remove(), Stop()]),
        (-3, 250.0, [Remove(), Remove(), Stop()]),
    ],
)
def test_failed_jobs_go_by_number_and_by_age_until_one_stays(
    surplus: int, before: float | None, verdicts: list[object]
) -> None:
    decide = retention_judge(surplus, before)

    found = [decide(_failed(at)) for at in (100, 200, 300)]

    assert found[: len(verdicts)] == verdicts
    assert retention_judge(0, 150.0)(_failed(None)) == Keep()


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_jobs", 0), ("max_memory", float("nan")), ("max_lifetime", 0.0), ("timeout", 0.0), ("timeout_grace", -1.0)],
)
def test_limits_that_make_no_sense_are_refused(name: str, value: float) -> None:
    with pytest.raises(SettingInvalid, match=name.replace("_", " ")):
        Limits(**{name: value})  # type: ignore[arg-type]
