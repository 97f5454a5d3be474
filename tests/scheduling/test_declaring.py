"""Recurring jobs as they are declared, and what a worker makes of it."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import BaseModel

import palermo
from palermo.client.client import Client
from palermo.client.prepare import prepare
from palermo.client.prepare_recurring import declarations, entry
from palermo.contract.recurring import RecurringJob
from palermo.contract.recurring_entries import CODE, CONFIG, RUNTIME, RecurringEntry, is_stale
from palermo.errors import ArgumentsInvalid, OptionInvalid, SettingInvalid
from palermo.jobs import registry
from palermo.settings.settings import Settings


@pytest.fixture(autouse=True)
def _own_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})


def test_the_options_of_a_job_say_when_it_recurs_and_hold_for_every_run(client: Client) -> None:
    @palermo.job(every=timedelta(minutes=2), queue="mail", timeout=9, expires=60, serializer="msgpack", delay=5)
    def sweep(where: str = "here") -> None: ...

    (made,) = declarations(client)

    name = sweep.definition.name
    assert made.recurring == RecurringJob(name=name, job=name, every=120.0, queue="mail")
    assert made.origin == f"{CODE}{__name__}"
    assert (made.message.queue, made.message.timeout, made.message.run_at) == ("mail", 9, None)
    assert (made.message.content_type, made.expires) == ("application/msgpack", 60)


@pytest.mark.parametrize(
    "options",
    [
        {"tenant": "acme", "share": 2.5},
        {"tenant": lambda region: f"shop {region}", "share": 2.5},
        {"priority": 7},
        {"limit": 3, "limit_key": lambda region: region},
        {"rate": "100/min"},
        {"queue": "mail", "timeout": 9, "rerun_after": 30},
        {"keep_result": True},
        {"serializer": "msgpack", "compression": "gzip"},
        {"unique": "until_done", "dedupe": 60, "unique_key": lambda region: region},
        {"unique": "until_start"},
        {"arguments": "one"},
    ],
    ids=lambda options: ", ".join(options),
)
def test_a_tick_publishes_the_message_that_an_enqueue_publishes(client: Client, options: dict[str, Any]) -> None:
    @palermo.job(every=60, schedule_args=("eu",), **options)
    def sweep(region: str) -> None: ...

    (made,) = declarations(client)

    enqueued = prepare(client, sweep.definition, ("eu",), {}, {}, None).message
    assert enqueued is not None
    assert made.message == replace(enqueued, id=made.name, created_at=None, queued_at=None)
    assert RecurringEntry.from_plain({**made.to_plain(), "from a later version": 1}) == made


def test_a_tick_has_no_debounce_and_needs_the_tenant_that_it_asks_for(client: Client) -> None:
    @palermo.job(every=60, debounce=5, unique_key=lambda: "all")
    def sweep() -> None: ...

    [made] = declarations(client)
    assert made.message.extra == {}

    @palermo.job(every=60, tenant=lambda: " ")
    def of_nobody() -> None: ...

    with pytest.raises(OptionInvalid, match="returned ' '"):
        declarations(client)


def test_a_class_job_has_a_name_and_arguments_for_its_schedule(client: Client) -> None:
    @palermo.job(cron="0 3 * * *", tz="Europe/Rome", missed="all", schedule_name="n", schedule_args={"region": "eu"})
    class Report:
        def process(self, region: str) -> None: ...

    (made,) = declarations(client)

    assert (made.name, made.recurring.missed, made.recurring.tz) == ("n", "all", "Europe/Rome")
    assert client.serializers.decode_for_display(made.message) == {"region": "eu"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cron": "* * * * *", "every": 5}, "cron= and every="),
        ({"cron": "every day"}, "cron="),
        ({"cron": 5}, "Expected `str`, got `int` - at `[$].cron`"),
        ({"every": "5m"}, "every="),
        ({"every": 0.5}, "every="),
        ({"tz": "Europe/Rome"}, "without cron= or every="),
        ({"every": 5, "missed": "maybe"}, "missed="),
        ({"every": 5, "schedule_name": " x"}, "name"),
        ({"every": 5, "schedule_name": "x" * 201}, "200 bytes"),
        ({"every": 5, "schedule_args": "x"}, "schedule_args got str 'x'"),
    ],
)
def test_a_mistake_is_said_where_the_job_is_declared(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionInvalid, match=said):

        @palermo.job(**options)
        def sweep() -> None: ...

    with pytest.raises(ArgumentsInvalid, match=r"where.* Set the arguments of a recurring job with schedule_args="):

        @palermo.job(every=5)
        def sweep_there(where: str) -> None: ...


def test_two_of_one_name_or_an_unreadable_schedule_are_refused(tmp_path: Path) -> None:
    for value in ("not JSON", "[]", '{"x": 5}', '{"x": {"job": 5, "every": 5}}'):
        with pytest.raises(SettingInvalid, match="schedule"):
            Settings(schedule=value)  # type: ignore[arg-type]

    @palermo.job(every=5, schedule_name="x")
    def sweep() -> None: ...

    settings = Settings(url=f"sqlite:///{tmp_path}/jobs.db", schedule={"x": {"job": "shop.note", "every": 5}})
    with Client(settings) as client, pytest.raises(OptionInvalid, match="two recurring jobs are named 'x'"):
        declarations(client)


@pytest.mark.parametrize(
    ("origin", "modules", "configures", "stale"),
    [
        (f"{CODE}shop.tasks", ["shop", "shop.tasks"], False, True),
        (f"{CODE}shop.tasks", ["shop"], False, False),
        (f"{CODE}shop.tasks", [], True, False),
        (CONFIG, ["shop"], True, True),
        (CONFIG, ["shop"], False, False),
        (RUNTIME, ["shop", "runtime"], True, False),
    ],
)
def test_what_is_declared_no_more_is_known_by_its_origin(
    client: Client, origin: str, modules: list[str], configures: bool, stale: bool
) -> None:
    made = entry(client, RecurringJob(name="x", job="shop.sweep", every=5), origin=origin)

    assert is_stale(made, names=[], modules=modules, configures=configures) is stale
    assert not is_stale(made, names=["x"], modules=modules, configures=configures)


class Region(BaseModel):
    name: str


def test_a_recurring_job_gets_a_model_as_an_enqueued_one_does(client: Client) -> None:
    @palermo.job(every=60, unique="until_done", schedule_args=({"name": "eu"},))
    def sweep(region: Region) -> None: ...

    (made,) = declarations(client)

    assert client.serializers.decode_for_display(made.message) == [{"name": "eu"}]

    @palermo.job(every=60, schedule_args=({"nome": "eu"},))
    def wrong(region: Region) -> None: ...

    with pytest.raises(ArgumentsInvalid, match="name"):
        declarations(client)
