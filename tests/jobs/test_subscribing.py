"""`@palermo.subscribe`: what it declares, and what it refuses."""

import types
from typing import Any

import pytest

from palermo.client import decorator
from palermo.client.decorator import FunctionJob
from palermo.client.subscribe import subscribe, subscriptions
from palermo.errors import JobNameTaken, OptionInvalid, TopicInvalid
from palermo.jobs.job_registry import Registry
from palermo.settings.settings import Settings


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """One that knows nothing yet."""
    fresh = Registry()
    monkeypatch.setattr(decorator, "registry", fresh)
    return fresh


def named(name: str) -> Any:
    """Another function, as if it were written elsewhere."""
    function = types.FunctionType((lambda payload: None).__code__, {"__name__": "shop", "__file__": "/shop.py"}, name)
    function.__qualname__ = name
    return function


def test_a_function_is_a_job_of_its_groups_name_with_one_argument(registry: Registry) -> None:
    @subscribe("order.*", "bill.#", "order.*", group="mail", retries=3, timeout=5, from_start=True)
    def on_order(payload: Any) -> Any:
        return payload

    assert isinstance(on_order, FunctionJob)
    assert on_order({"a": 1}) == {"a": 1}
    definition = registry.get("mail")
    assert definition is on_order.definition
    assert (definition.arguments, definition.retries, definition.timeout) == ("one", 3, 5)
    settings = Settings(exchange="shop")
    assert definition.queue_in(settings) == "shop_mail"
    assert definition.queue_in(Settings(exchange="shop", events_prefix="tuleap")) == "=tuleap_mail"
    assert registry.queues() == ()
    subscribe("#", group="audit")(type("Audit", (), {"process": lambda self, payload: None}))
    assert registry.get("audit").is_class
    (_, (subscription, from_start)) = sorted(subscriptions(registry, "shop", "shop"), key=lambda one: one[0].group)
    assert (subscription.group, subscription.queue, from_start) == ("mail", "shop_mail", True)
    assert subscription.topics == ("bill.#", "order.*")
    assert subscription.function.endswith("on_order")
    assert (subscription.wants("bill.x.y"), subscription.wants("bills")) == (True, False)


def test_a_second_function_of_a_group_is_refused_and_the_same_again_is_not() -> None:
    subscribe("a", group="mail")(named("first"))
    subscribe("b", group="mail")(named("first"))

    with pytest.raises(
        JobNameTaken, match=r"group 'mail' has two functions: first in line \d+ of /shop\.py and second"
    ):
        subscribe("a", group="mail")(named("second"))


@pytest.mark.parametrize(
    ("topics", "options", "error", "says"),
    [
        ((), {"group": "mail"}, TopicInvalid, "no topic"),
        (("order.pa*",), {"group": "mail"}, TopicInvalid, "one whole word"),
        (("order",), {"group": ""}, TopicInvalid, "not a name"),
        (("order",), {"group": "~mail"}, TopicInvalid, "group"),
        (("order",), {"group": "mail", "queue": "slow"}, OptionInvalid, "no option 'queue'"),
        (("order",), {"group": "mail", "cron": "* * * * *"}, OptionInvalid, "no option 'cron'"),
        (("order",), {"group": "mail", "retries": -1}, OptionInvalid, "not a whole number"),
    ],
)
def test_what_means_nothing_is_refused_where_it_is_written(
    topics: tuple[str, ...], options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        subscribe(*topics, **options)(named("on"))
