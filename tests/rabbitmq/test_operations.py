"""Questions to the leader, and its replies, survive their way over the wire; nonsense is refused."""

import json
from typing import Any

import pytest

from palermo.brokers.rabbitmq.amqp.rpc import Part
from palermo.brokers.rabbitmq.leadership.operations import (
    AlterScheduled,
    CancelJobs,
    ChangeRecurring,
    ClearTenants,
    CountTenantJobs,
    EmptyQueue,
    EndRun,
    EnqueueUnique,
    FreeKeys,
    GiveBackTenantJobs,
    HasTenantJobs,
    ListingProgress,
    ListKeys,
    ListLimits,
    ListRecurring,
    ListReplaced,
    ListScheduled,
    ListTenantNames,
    ListTenants,
    Operation,
    PurgeTenants,
    ReadmitJobs,
    RemoveJobs,
    RequestPermit,
    StartJob,
    from_plain,
)
from palermo.contract.broker import KeyPage, Tenant
from palermo.contract.recurring_entries import EntryChange
from palermo.contract.scheduled import AlteredJob, ScheduledFilter
from palermo.core.limits import LimitDemand, LimitInfo, Rate, RunLater, RunNow
from palermo.core.unique_keys import Key, KeyRequest
from palermo.core.unique_rules import EnqueueAnswer, EnqueueOutcome, StartAnswer, StartReason
from palermo.errors import NotFound, PublishRefused
from tests.contract.tools import message

_JOB = message("a", extra={"unique": "until_done", "unique-key": "k"})
_DEMAND = LimitDemand(key="k", limit=2, rate=Rate.parse("50/s"), written="50/s", reserved=True)

_QUESTIONS: list[Operation[Any]] = [
    StartJob.of(_JOB, worker="w", run="r", again=False),
    RemoveJobs([("k", "a")]),
    CancelJobs(["a"]),
    FreeKeys(["k"]),
    EmptyQueue("mail", delete=True),
    ListKeys("mail", 500, 100),
    ListKeys("k", 0, 9, exact=True),
    ListReplaced(["k"]),
    RequestPermit(_DEMAND, "a", "w"),
    EndRun("k", "a", "w"),
    ListLimits(),
    ListScheduled(ScheduledFilter(ids=frozenset("a")), 3, 4),
    ListingProgress(),
    AlterScheduled(ScheduledFilter(queue="q"), "move", 5.0, apart=True),
    ListRecurring(),
    ChangeRecurring(EntryChange(name="n", action="switch", on=False)),
    CountTenantJobs(),
    ListTenants("q"),
    ListTenantNames("q"),
    GiveBackTenantJobs("q", still=True),
    HasTenantJobs("q", "a"),
    PurgeTenants("q", None),
    ClearTenants("q", None),
]

_REPLIES: list[tuple[Operation[Any], object]] = [
    (EnqueueUnique([]), [EnqueueAnswer(outcome=EnqueueOutcome.DUPLICATE, id="a", state="waiting")]),
    (_QUESTIONS[0], StartAnswer(why=StartReason.RUN, serial=1, starts=2, tell=True)),
    (ReadmitJobs([]), [True, False]),
    (RemoveJobs([]), None),
    (FreeKeys([]), ["k"]),
    (EmptyQueue("q", delete=False), 3),
    (EmptyQueue("q", delete=False), None),
    (ListKeys("k", 0, 100), KeyPage(keys=(Key(name="k", serial=2),), total=1)),
    (RequestPermit(_DEMAND, "a", "w"), RunNow(0.5)),
    (RequestPermit(_DEMAND, "a", "w"), RunLater(7.0, reserved=True)),
    (ListLimits(), [LimitInfo(key="k", limit=None, rate="1/s", running=1, waiting=2)]),
    (ListingProgress(), (3, 40)),
    (ListingProgress(), None),
    (
        AlterScheduled(ScheduledFilter(), "run", None, apart=False),
        [AlteredJob(id="a", job="j", queue="q", run_at=1.0)],
    ),
    (ListRecurring(), []),
    (CountTenantJobs(), {"q": 2}),
    (ListTenants("q"), [Tenant(name="t", pending=2)]),
    (ListTenantNames("q"), ["t"]),
    (GiveBackTenantJobs("q"), None),
    (ClearTenants("q", "t"), 4),
]


def _sent(value: object) -> Any:
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("operation", _QUESTIONS, ids=lambda value: type(value).__name__)
def test_a_question_is_read_as_it_was_asked(operation: Operation[Any]) -> None:
    assert from_plain(_sent(operation.to_plain())) == operation


@pytest.mark.parametrize(
    "operation", [EnqueueUnique([KeyRequest(key="k", message=_JOB, call="c")]), ReadmitJobs([_JOB])]
)
def test_jobs_with_keys_travel_whole(operation: Operation[Any]) -> None:
    plain = _sent(operation.to_plain())

    assert _sent(from_plain(plain).to_plain()) == plain
    assert '"unique-key": "k"' in json.dumps(plain)


@pytest.mark.parametrize(("operation", "reply"), _REPLIES, ids=lambda value: type(value).__name__)
def test_a_reply_is_read_as_it_was_given(operation: Operation[Any], reply: object) -> None:
    sent = [Part(_sent(part.values)) for part in operation.reply.write(reply)]

    assert operation.reply_from_parts(sent) == reply


@pytest.mark.parametrize(
    ("operation", "error", "name"),
    [
        (FreeKeys([]), PublishRefused, "refused"),
        (ChangeRecurring(EntryChange(name="n", action="run")), NotFound, "missing"),
    ],
)
def test_a_reply_may_be_an_error(operation: Operation[Any], error: type[Exception], name: str) -> None:
    with pytest.raises(error, match="why"):
        operation.reply_from_parts([Part({name: "why"})])


@pytest.mark.parametrize("plain", [{}, {"ask": "keys"}, {"ask": ["keys"]}, {"ask": "keys", "do": "free", "names": 1}])
def test_a_question_that_means_nothing_is_refused(plain: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no such operation"):
        from_plain(plain)
