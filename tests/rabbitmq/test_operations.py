"""The leader's operations have the JSON that docs/internals/wire.md shows, and are read back from it."""

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
from palermo.core.message import Message
from palermo.core.unique_keys import Key, KeyRequest
from palermo.core.unique_rules import EnqueueAnswer, EnqueueOutcome, StartAnswer, StartReason
from palermo.errors import NotFound, PublishRefused

_JOB = Message(id="a", job="shop.mail", queue="mail", body=b"[1]", extra={"unique": "until_done", "unique-key": "k"})
_DEMAND = LimitDemand(key="k", limit=2, rate=Rate.parse("50/s"), written="50/s", reserved=True)

#: Operations and their JSON as other versions send it, to the byte.
_REQUESTS: list[tuple[Operation[Any], str]] = [
    (
        StartJob.of(_JOB, worker="w", run="r", again=False),
        '{"ask":"keys","do":"start","message":{"id":"a","job":"shop.mail","queue":"mail","tenant":"","run_at":null,'
        '"unique":"until_done","unique-key":"k"},"worker":"w","run":"r","again":false}',
    ),
    (RemoveJobs([("k", "a")]), '{"ask":"keys","do":"gone","jobs":[["k","a"]]}'),
    (CancelJobs(["a"]), '{"ask":"keys","do":"cancelled","ids":["a"]}'),
    (FreeKeys(["k"]), '{"ask":"keys","do":"free","names":["k"]}'),
    (EmptyQueue("mail", delete=True), '{"ask":"keys","do":"empty","queue":"mail","delete":true}'),
    (
        ListKeys("mail", 500, 100),
        '{"ask":"keys","do":"known","text":"mail","offset":500,"limit":100,"exact":false}',
    ),
    (ListKeys("k", 0, 9, exact=True), '{"ask":"keys","do":"known","text":"k","offset":0,"limit":9,"exact":true}'),
    (ListReplaced(["k"]), '{"ask":"keys","do":"known","replaced":["k"]}'),
    (
        RequestPermit(_DEMAND, "a", "w"),
        '{"ask":"limits","do":"ask","key":"k","limit":2,"rate":"50/s","turn":true,"id":"a","worker":"w"}',
    ),
    (EndRun("k", "a", "w"), '{"ask":"limits","do":"ended","key":"k","id":"a","worker":"w"}'),
    (ListLimits(), '{"ask":"limits","do":"known"}'),
    (
        ListScheduled(ScheduledFilter(ids=frozenset("a")), 3, 4),
        '{"ask":"list","chosen":{"ids":["a"],"queue":null,"job":null,"retries":null,"due":null},"offset":3,"limit":4}',
    ),
    (ListingProgress(), '{"ask":"list","do":"progress"}'),
    (
        AlterScheduled(ScheduledFilter(queue="q"), "move", 5.0, apart=True),
        '{"ask":"alter","chosen":{"ids":null,"queue":"q","job":null,"retries":null,"due":null},"action":"move",'
        '"at":5.0,"apart":true}',
    ),
    (ListRecurring(), '{"ask":"recurring","change":null}'),
    (
        ChangeRecurring(EntryChange(name="n", action="switch", on=False)),
        '{"ask":"recurring","change":{"name":"n","action":"switch","entry":null,"on":false,"id":""}}',
    ),
    (CountTenantJobs(), '{"ask":"tenants","queue":null}'),
    (ListTenants("q"), '{"ask":"tenants","queue":"q","hold":false}'),
    (ListTenantNames("q"), '{"ask":"tenants","queue":"q","names":true}'),
    (GiveBackTenantJobs("q", still=True), '{"ask":"tenants","queue":"q","hold":true,"still":true}'),
    (HasTenantJobs("q", "a"), '{"ask":"tenants","do":"has","queue":"q","tenant":"a"}'),
    (PurgeTenants("q", None), '{"ask":"tenants","do":"purge","queue":"q","tenant":null}'),
    (ClearTenants("q", None), '{"ask":"clear tenants","queue":"q","tenant":null}'),
]

#: Operations, replies, and the JSON of their parts.
_REPLIES: list[tuple[Operation[Any], object, list[str]]] = [
    (
        EnqueueUnique([]),
        [EnqueueAnswer(outcome=EnqueueOutcome.DUPLICATE, id="a", state="waiting")],
        ['{"answers":[{"outcome":"duplicate","id":"a","state":"waiting","instead_of":""}]}'],
    ),
    (
        StartJob.of(_JOB, worker="w", run="r", again=False),
        StartAnswer(why=StartReason.RUN, serial=1, starts=2, tell=True),
        ['{"start":{"why":"run","holder":"","serial":1,"starts":2,"tell":true,"content":null}}'],
    ),
    (ReadmitJobs([]), [True, False], ['{"may":[true,false]}']),
    (RemoveJobs([]), None, ["{}"]),
    (FreeKeys([]), ["k"], ['{"freed":["k"]}']),
    (EmptyQueue("q", delete=False), 3, ['{"count":3}']),
    (EmptyQueue("q", delete=False), None, ['{"missing":true}']),
    (
        ListKeys("k", 0, 100),
        KeyPage(keys=(Key(name="k", serial=2),), total=1),
        ['{"keys":[{"name":"k","serial":2}],"total":1}'],
    ),
    (RequestPermit(_DEMAND, "a", "w"), RunNow(0.5), ['{"wait":0.5}']),
    (RequestPermit(_DEMAND, "a", "w"), RunLater(7.0, reserved=True), ['{"at":7.0,"turn":true}']),
    (
        ListLimits(),
        [LimitInfo(key="k", limit=None, rate="1/s", running=1, waiting=2)],
        ['{"keys":[["k",null,"1/s",1,2]]}'],
    ),
    (ListingProgress(), (3, 40), ['{"progress":[3,40]}']),
    (ListingProgress(), None, ['{"progress":null}']),
    (
        AlterScheduled(ScheduledFilter(), "run", None, apart=False),
        [AlteredJob(id="a", job="j", queue="q", run_at=1.0)],
        ['{"rows":[["a","j","q",1.0]]}', "{}"],
    ),
    (ListRecurring(), [], ["{}"]),
    (CountTenantJobs(), {"q": 2}, ['{"totals":{"q":2}}']),
    (ListTenants("q"), [Tenant(name="t", pending=2)], ['{"rows":[["t",2,1.0]]}', "{}"]),
    (ListTenantNames("q"), ["t"], ['{"names":["t"]}', "{}"]),
    (GiveBackTenantJobs("q"), None, ["{}"]),
    (ClearTenants("q", "t"), 4, ['{"removed":4}']),
]


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


@pytest.mark.parametrize(("operation", "text"), _REQUESTS, ids=lambda value: type(value).__name__)
def test_an_operation_has_its_json_and_is_read_from_it(operation: Operation[Any], text: str) -> None:
    assert _json(operation.to_plain()) == text
    assert from_plain(json.loads(text)) == operation


def test_keys_are_listed_for_and_by_processes_of_the_version_before() -> None:
    assert from_plain({"ask": "keys", "do": "known"}) == ListKeys(limit=None)
    assert from_plain({"ask": "keys", "do": "known", "text": "k", "offset": 0, "limit": 9}) == ListKeys("k", 0, 9)
    keys = {"keys": [{"name": "k", "serial": 2}]}
    assert ListKeys().reply_from_parts([Part(keys)]) == KeyPage(keys=(Key(name="k", serial=2),), total=1)


def test_jobs_with_keys_travel_whole() -> None:
    claim = KeyRequest(key="k", message=_JOB, call="c")
    for operation in (EnqueueUnique([claim]), ReadmitJobs([_JOB])):
        again = from_plain(json.loads(_json(operation.to_plain())))
        assert _json(again.to_plain()) == _json(operation.to_plain())


@pytest.mark.parametrize(("operation", "reply", "parts"), _REPLIES, ids=lambda value: type(value).__name__)
def test_a_reply_has_its_json_and_is_read_from_it(operation: Operation[Any], reply: object, parts: list[str]) -> None:
    sent = operation.reply.write(reply)

    assert [_json(part.values) for part in sent] == parts
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
def test_a_plainthat_means_nothing_is_refused(plain: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no such operation"):
        from_plain(plain)
