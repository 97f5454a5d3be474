"""Values as JSON values, and back."""

import inspect
import json

import pytest
from msgspec import ValidationError

from palermo.contract.events import Subscription
from palermo.contract.recurring import RecurringJob
from palermo.contract.recurring_entries import RUNTIME, RecurringEntry
from palermo.contract.unique_jobs import UniqueJob
from palermo.core.message import Message
from palermo.worker.registered import Registered

UNIQUE = UniqueJob.of("shop.mail", {"unique": "until_done"}, inspect.signature(lambda to, copies=1: None))


def test_the_registration_of_a_worker_survives_the_way_to_its_parent() -> None:
    registered = Registered(
        jobs=("shop.mail",),
        queues=("mail",),
        hooks=frozenset({"before_fork", "after_fork"}),
        timeouts={"shop.mail": 9.0},
        prioritized=frozenset({"mail"}),
        batches={"shop.sum": (100, 1.0)},
        unique=(UNIQUE,),
        recurring=(
            RecurringEntry(
                recurring=RecurringJob(name="n", job="shop.mail", every=60.0),
                message=Message(id="n", queue="mail", job="shop.mail", body=b"\xff", properties={"priority": 7}),
                origin=RUNTIME,
                since=5.0,
            ),
        ),
        subscriptions=((Subscription(group="g", queue="q", topics=("a.*",)), True),),
    )

    assert Registered.from_plain(json.loads(json.dumps(registered.to_plain()))) == registered


@pytest.mark.parametrize("odd", [{"parameters": [["to", 9]]}, {"parameters": [["1to", 0]]}, {"options": 3}, {"job": 3}])
def test_an_announcement_that_no_worker_wrote_is_refused(odd: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        UniqueJob.from_plain({**UNIQUE.to_plain(), **odd})
