"""`enqueued`, `assert_enqueued` and `refute_enqueued`, and their messages."""

from datetime import timedelta
from unittest.mock import ANY

import pytest

from palermo.errors import ArgumentsInvalid
from palermo.testing import Palermo
from tests.testing import jobs


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1,), {}), ((1, 2), {}), ((), {"a": 1}), ((1,), {"b": 2}), ((ANY,), {"b": 2}), ((ANY, ANY), {})],
)
def test_a_call_is_found_in_any_form(palermo: Palermo, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    jobs.add.enqueue(1)

    assert palermo.assert_enqueued(jobs.add, *args, **kwargs).args == (1,)
    assert len(palermo.enqueued(jobs.add, *args, **kwargs)) == 1
    with pytest.raises(AssertionError):
        palermo.refute_enqueued(jobs.add, *args, **kwargs)
    for others in ((2,), (1, 3)):
        palermo.refute_enqueued(jobs.add, *others)
    with pytest.raises(ArgumentsInvalid):
        palermo.refute_enqueued(jobs.add, 1, 2, 3)


def test_a_job_may_be_named_and_arguments_are_compared_as_they_arrive(palermo: Palermo) -> None:
    jobs.mail.enqueue("a", copies=("b", "c"))
    assert palermo.assert_enqueued(jobs.mail, "a", copies=("b", "c")).kwargs == {"copies": ("b", "c")}
    palermo.refute_enqueued(jobs.mail, "a")

    jobs.add.enqueue(1)
    palermo.enqueue("elsewhere.job", ("a",), {"b": 1})

    palermo.assert_enqueued("tests.testing.jobs.add", 1, b=2)
    palermo.assert_enqueued("elsewhere.job", "a", b=1)
    palermo.refute_enqueued("elsewhere.job", "b")
    with pytest.raises(TypeError, match="isn't a job"):
        palermo.assert_enqueued(len)


def test_what_is_due_later_and_what_waits_for_a_key_is_found(palermo: Palermo) -> None:
    jobs.add.enqueue_in(timedelta(hours=1), 1)
    jobs.add.options(debounce=60).enqueue(2)
    jobs.add.options(tenant="acme", queue="shared").enqueue(3)

    later = palermo.assert_enqueued(jobs.add, 1)
    assert later.run_at is not None
    assert timedelta(minutes=59) < later.run_at - palermo.clock.time <= timedelta(hours=1)
    assert palermo.assert_enqueued(jobs.add, 2).run_at is not None
    assert palermo.assert_enqueued(jobs.add, 3).tenant == "acme"
    assert len(palermo.enqueued()) == 3
    palermo.inspector().jobs.cancel([palermo.assert_enqueued(jobs.add, number).id for number in (1, 3)])
    for number in (1, 3):
        palermo.refute_enqueued(jobs.add, number)


def test_the_message_shows_what_is_there(palermo: Palermo) -> None:
    with pytest.raises(AssertionError) as caught:
        palermo.assert_enqueued(jobs.add, 1, b=3)
    assert str(caught.value) == "no job tests.testing.jobs.add(1, b=3) is enqueued. Nothing is enqueued."

    palermo.clock.freeze()
    jobs.add.enqueue(1)
    jobs.mail.options(delay=60, tenant="acme").enqueue("ada", copies=("b",))
    with pytest.raises(AssertionError) as caught:
        palermo.assert_enqueued(jobs.add, 7)
    assert str(caught.value) == (
        "no job tests.testing.jobs.add(7) is enqueued. Enqueued jobs:\n"
        "  tests.testing.jobs.add(1) in queue jobs\n"
        "  tests.testing.jobs.mail('ada', copies=('b',)) in queue mail, due in 60 s, tenant acme"
    )

    with pytest.raises(AssertionError) as caught:
        palermo.refute_enqueued(jobs.add)
    assert str(caught.value) == "job tests.testing.jobs.add is enqueued:\n  tests.testing.jobs.add(1) in queue jobs"
    with pytest.raises(AssertionError, match="a job is enqueued"):
        palermo.refute_enqueued()
    jobs.add.enqueue_many([(number,) for number in range(23)])
    with pytest.raises(AssertionError, match="and 5 more"):
        palermo.assert_enqueued(jobs.broken)
