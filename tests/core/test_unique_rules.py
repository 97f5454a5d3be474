"""The states of a key: by table; test_unique_rules_kills.py has a model in which anyone may be killed."""

import pytest
from msgspec.structs import replace

from palermo.core import unique_rules as rules
from palermo.core.message import Message
from palermo.core.unique_keys import Key, KeyRequest, Mode, UniqueLock, lock_of, with_lock
from palermo.core.unique_rules import EnqueueAnswer, EnqueueOutcome, KeyUpdate, RunOutcome, StartReason, end

KEY = "shop.mail.send:a@b.c"


def job(id: str, mode: Mode = Mode.DONE, *, linger: float = 0.0, seconds: float = 0.0, body: bytes = b"") -> Message:
    message = Message(id=id, queue="jobs", job="shop.mail.send", body=body or id.encode())
    return with_lock(message, UniqueLock(key=KEY, mode=mode, seconds=seconds, linger=linger))


def asked(
    key: Key, message: Message, now: float = 0.0, *, call: str = "", **more: object
) -> tuple[KeyUpdate, EnqueueAnswer]:
    claim = KeyRequest(key=KEY, message=message, call=call or f"call {message.id}", **more)  # type: ignore[arg-type]
    return rules.enqueue(key, claim, now)


def started(
    key: Key, message: Message, now: float = 0.0, *, run: str = "1", again: bool = False
) -> tuple[KeyUpdate, rules.StartAnswer]:
    return rules.start(key, message, worker="w", run=run, again=again, now=now)


def taken(message: Message) -> Key:
    return asked(Key(name=KEY), message)[0].key


def running(message: Message) -> Key:
    return started(taken(message), message)[0].key


def test_whoever_got_no_answer_asks_again_and_is_answered_as_before() -> None:
    step, first = asked(Key(name=KEY), job("a"))
    again, second = asked(step.key, job("a"))
    assert (second, again.jobs) == (first, ())

    over = end(step.key, "a", RunOutcome.DONE, serial=None, now=1)
    again, third = asked(over.key, job("a"), 2)
    assert (third.outcome, third.state, again.jobs) == (EnqueueOutcome.STORED, "ended", ())

    _, other = asked(step.key, job("a"), call="another")
    assert other.outcome is EnqueueOutcome.DUPLICATE


@pytest.mark.parametrize("how", [RunOutcome.DONE, RunOutcome.OVER])
def test_until_done_lasts_from_the_enqueue_to_the_end_retries_included(how: RunOutcome) -> None:
    key = running(job("a"))
    key = end(key, "a", RunOutcome.AGAIN, serial=1, now=5).key
    assert asked(key, job("b"), 6)[1].state == "waiting"
    key, answer = started(key, job("a"), 7, run="2")[0].key, asked(key, job("b"), 7)[1]
    assert answer.outcome is EnqueueOutcome.DUPLICATE

    key = end(key, "a", how, serial=1, now=8).key

    assert asked(key, job("b"), 8)[1] == EnqueueAnswer(outcome=EnqueueOutcome.STORED, id="b")


def test_until_start_lasts_to_the_start() -> None:
    first = job("a", Mode.START)
    key = taken(first)
    assert asked(key, job("b", Mode.START))[1].outcome is EnqueueOutcome.DUPLICATE

    step, answer = started(key, first)

    assert (answer.why, answer.report_end) == (StartReason.RUN, False)
    step, stored = asked(step.key, job("b", Mode.START))
    assert stored.outcome is EnqueueOutcome.STORED
    assert started(step.key, first, run="2", again=True)[1].why is StartReason.RUN


def test_seconds_last_so_many_seconds_unless_the_job_fails() -> None:
    key = taken(job("a", Mode.WINDOW, seconds=60))
    assert end(key, "a", RunOutcome.DONE, serial=None, now=1).key == key
    assert asked(key, job("b", Mode.WINDOW, seconds=60), 59.9)[1].outcome is EnqueueOutcome.DUPLICATE
    assert asked(key, job("b", Mode.WINDOW, seconds=60), 60)[1].outcome is EnqueueOutcome.STORED
    failed = end(key, "a", RunOutcome.OVER, serial=None, now=1).key
    assert asked(failed, job("b", Mode.WINDOW, seconds=60), 2)[1].outcome is EnqueueOutcome.STORED


def test_dedupe_closes_the_key_after_a_good_end_only() -> None:
    key = running(job("a", linger=10))
    done = end(key, "a", RunOutcome.DONE, serial=1, now=5).key
    assert asked(done, job("b"), 14.9)[1] == EnqueueAnswer(outcome=EnqueueOutcome.DUPLICATE, id="a", state="ended")
    assert asked(done, job("b"), 15)[1].outcome is EnqueueOutcome.STORED
    assert asked(end(key, "a", RunOutcome.OVER, serial=1, now=5).key, job("b"), 6)[1].outcome is EnqueueOutcome.STORED


@pytest.mark.parametrize("mode", [Mode.DONE, Mode.START])
def test_replace_gives_the_waiting_job_new_arguments(mode: Mode) -> None:
    first = job("a", mode, body=b"old")
    step, answer = asked(taken(first), job("b", mode, body=b"new"), on_duplicate=rules.REPLACE)
    assert (step.jobs, answer.outcome, answer.id) == ((), EnqueueOutcome.REPLACED, "a")

    step, begun = started(step.key, first)
    assert begun.content is not None
    assert begun.report_end
    changed = rules.with_arguments_of(first, begun.content)
    assert (changed.id, changed.body) == ("a", b"new")
    again, begun = started(step.key, first, 1e5, run="2", again=True)
    assert begun.content is not None

    over = end(again.key, "a", RunOutcome.DONE, serial=begun.serial or None, now=1e5)
    assert over.jobs == ()
    assert asked(over.key, job("c", mode), 1e5)[1].outcome is EnqueueOutcome.STORED


@pytest.mark.parametrize("way", [rules.REPLACE, rules.RERUN])
def test_what_comes_too_late_for_the_present_run_runs_once_after_it(way: str) -> None:
    # A rerun of a job that waits is the run that it waits for.
    step, answer = asked(taken(job("a")), job("b"), on_duplicate=rules.RERUN)
    assert (step.jobs, answer.outcome, answer.id, step.key.next) == ((), EnqueueOutcome.DUPLICATE, "a", None)
    step, answer = asked(running(job("a")), job("b"), on_duplicate=way)
    assert (step.jobs, answer.outcome, answer.id) == ((), EnqueueOutcome.NEXT, "b")
    step, answer = asked(step.key, job("c"), on_duplicate=way)
    assert (answer.id, answer.displaced) == ("c", "b")

    step = end(step.key, "a", RunOutcome.OVER, serial=1, now=1)

    assert step.jobs == (job("c"),)
    assert asked(step.key, job("d"), 2)[1] == EnqueueAnswer(outcome=EnqueueOutcome.DUPLICATE, id="c", state="waiting")


def test_a_copy_is_not_started_beside_the_job_nor_after_its_end() -> None:
    key = running(job("a"))
    assert started(key, job("a"), run="2")[1].why is StartReason.COPY
    assert started(key, job("a"), run="1")[1].why is StartReason.RUN
    assert started(key, job("a"), run="2", again=True)[1].why is StartReason.RUN

    over = end(key, "a", RunOutcome.DONE, serial=1, now=0).key
    assert started(over, job("a"), run="3", again=True)[1].why is StartReason.ENDED
    assert started(over, job("a"), rules.REMEMBERED + 1, run="3", again=True)[1].why is StartReason.RUN
    gone_on = asked(over, job("b"), 1)[0].key
    answer = started(gone_on, job("a"), rules.REMEMBERED + 1, run="3", again=True)[1]
    assert (answer.why, answer.holder) == (StartReason.DUPLICATE, "b")


def test_the_end_of_an_earlier_run_does_not_free_the_key_of_a_later_one() -> None:
    over = end(running(job("a")), "a", RunOutcome.DONE, serial=1, now=1).key
    second = started(asked(over, job("a"), 100, call="later")[0].key, job("a"), 100)[0].key

    assert end(second, "a", RunOutcome.DONE, serial=1, now=101).key.holder is not None
    assert end(second, "a", RunOutcome.DONE, serial=2, now=101).key.holder is None


@pytest.mark.parametrize("how", [RunOutcome.DONE, RunOutcome.OVER, RunOutcome.AGAIN])
def test_the_end_of_a_run_says_nothing_of_one_that_was_started_since(how: RunOutcome) -> None:
    first, answer = started(taken(job("a")), job("a"), run="1")
    second, later = started(first.key, job("a"), run="2", again=True)
    assert (answer.starts, later.starts) == (1, 2)

    assert end(second.key, "a", how, serial=1, starts=1, now=1) == KeyUpdate(key=second.key)

    over = end(second.key, "a", how, serial=1, starts=2, now=1).key
    assert end(over, "a", how, serial=1, starts=1, now=1).key == over
    assert (over.holder is None) == (how is not RunOutcome.AGAIN)


def test_a_job_is_put_back_only_while_none_runs_with_its_key() -> None:
    assert rules.readmit(taken(job("a")), job("a"), 0)[1]
    assert not rules.readmit(taken(job("a")), job("b"), 0)[1]
    assert not rules.readmit(running(job("a")), job("a"), 0)[1]
    moved = replace(job("a"), queue="slow", run_at=9.0)
    holder = rules.readmit(taken(job("a")), moved, 0)[0].key.holder
    assert holder is not None
    assert (holder.queue, holder.run_at) == ("slow", 9.0)
    assert rules.readmit(running(job("a")), moved, 0)[0].key == running(job("a"))
    over = end(running(job("a")), "a", RunOutcome.OVER, serial=1, now=0).key
    step, may = rules.readmit(over, job("a"), 0)
    assert may
    assert started(step.key, job("a"), run="2")[1].why is StartReason.RUN


def test_a_workflow_goes_on_only_with_its_key_if_it_has_it_to_its_end() -> None:
    a = job("a")
    over = rules.workflow_changed(running(a), a, RunOutcome.OVER, 0)[0].key
    step, may = rules.workflow_changed(over, a, RunOutcome.AGAIN, 0)
    assert (over.holder, may, step.jobs) == (None, True, ())
    assert asked(step.key, job("b"), on_duplicate=rules.REPLACE)[1].outcome is EnqueueOutcome.NEXT
    assert rules.workflow_changed(step.key, a, RunOutcome.AGAIN, 0) == (KeyUpdate(key=step.key), True)

    held = taken(job("b"))
    assert rules.workflow_changed(held, a, RunOutcome.AGAIN, 0) == (KeyUpdate(key=held), False)
    for mode in (Mode.START, Mode.WINDOW):
        assert rules.workflow_changed(held, job("a", mode, seconds=5), RunOutcome.AGAIN, 0)[1]


def test_a_freed_key_publishes_or_drops_the_next_and_is_taken_again_at_a_start() -> None:
    key = asked(running(job("a")), job("b"), on_duplicate=rules.RERUN)[0].key
    assert rules.free(key, now=1).jobs == (job("b"),)
    assert rules.free(key, now=1, drop_next=True) == KeyUpdate(key=replace(key, holder=None, next=None))

    key = rules.free(taken(job("a")), now=1).key
    assert key.holder is None
    step, answer = started(key, job("a"), 2)
    assert (answer.why, answer.report_end) == (StartReason.RUN, True)
    assert asked(step.key, job("b"), 3)[1] == EnqueueAnswer(outcome=EnqueueOutcome.DUPLICATE, id="a", state="running")


def test_of_a_burst_a_debounce_runs_the_last_and_a_throttle_the_first_too() -> None:
    plain = [Message(id=id, queue="jobs", job="shop.sum") for id in "abcd"]
    step, answer = asked(Key(name=KEY), plain[0], 0, spread=rules.DEBOUNCE, seconds=5)
    assert (step.jobs, answer.outcome, step.key.alarm) == ((), EnqueueOutcome.KEPT, 5)
    step, answer = asked(step.key, plain[1], 4, spread=rules.DEBOUNCE, seconds=5)
    assert (answer.displaced, step.key.alarm) == ("a", 9)
    assert rules.publish_due(step.key, 8.9).jobs == ()

    step = rules.publish_due(step.key, 9)

    assert (step.jobs, step.key.alarm) == ((plain[1],), None)
    again, answer = asked(step.key, plain[1], 9.1, spread=rules.DEBOUNCE, seconds=5)
    assert (again.jobs, answer.outcome, again.key.next) == ((), EnqueueOutcome.STORED, None)

    step, answer = asked(Key(name=KEY), plain[0], 0, spread=rules.THROTTLE, seconds=5)
    assert (step.jobs, answer.outcome) == ((plain[0],), EnqueueOutcome.STORED)
    step, _ = asked(step.key, plain[1], 1, spread=rules.THROTTLE, seconds=5)
    step, answer = asked(step.key, plain[2], 2, spread=rules.THROTTLE, seconds=5)
    assert (step.jobs, answer.outcome, answer.displaced) == ((), EnqueueOutcome.KEPT, "b")

    step = rules.publish_due(step.key, 5)

    assert step.jobs == (plain[2],)
    step, answer = asked(step.key, plain[3], 6, spread=rules.THROTTLE, seconds=5)
    assert (step.jobs, answer.outcome, step.key.alarm) == ((), EnqueueOutcome.KEPT, 10)


def test_a_key_survives_being_written_down() -> None:
    key = asked(running(job("a", linger=3)), job("b", body=b"\x00\xff"), on_duplicate=rules.RERUN)[0].key
    key = replace(asked(key, job("c"), on_duplicate=rules.REPLACE)[0].key, due=5.0)
    waiting = asked(taken(job("a")), job("b"), on_duplicate=rules.REPLACE)[0].key
    over = end(running(job("a", linger=3)), "a", RunOutcome.DONE, serial=1, now=1).key
    for one in (key, waiting, over, Key(name=KEY)):
        assert Key.from_plain(one.to_plain()) == one
    urgent = replace(job("a"), properties={"priority": 7})
    claim = KeyRequest(key=KEY, message=urgent, call="1", on_duplicate=rules.RERUN)
    assert KeyRequest.from_plain(claim.to_plain()) == claim


def test_headers_that_mean_nothing_lock_nothing() -> None:
    for extra in ({}, {"unique": "until_done"}, *({"unique": mode, "unique-key": "k"} for mode in ("?", True))):
        assert lock_of(Message(id="a", queue="jobs", job="x", extra=extra)) is None
