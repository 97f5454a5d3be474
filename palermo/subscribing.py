"""`@palermo.subscribe`: a function, or a class with `process`, that handles the events of some topics.

What is decorated is a job like any other, with the payload as its one argument: it has slots, retries, hooks, and
its failures are where all failures are. Its wire name is the group's.
"""

from collections.abc import Mapping
from typing import Any

from palermo.core.topics import check_group, check_pattern
from palermo.errors import TopicInvalid
from palermo.events import Subscription
from palermo.jobs import JobDecorator, declare
from palermo.options import SUBSCRIBABLE, check_options
from palermo.registry import Registry, Subscribes, wire_name


def subscribe(*topics: str, group: str, from_start: bool = False, **options: Any) -> JobDecorator:
    """Have a function handle the events of these topics, once for the whole group however many workers it has.

    A topic may hold `*`, one word, and `#`, any number of words. `group` names who wants to know: its events wait in a
    queue of its own, also while no worker of it runs. With `from_start` a group that subscribes for the first time
    begins with the events that are still kept. Options are those of a job that concern its run: `retries`,
    `backoff`, `retry_for`, `retry_on`, `discard_on`, `timeout` and `keep_result`. The topic of the event is
    `palermo.current_job().topic`.

    A group has one function: a second raises JobNameTaken. Raises TopicInvalid and OptionInvalid.
    """
    if not topics:
        raise TopicInvalid('@palermo.subscribe got no topic; write @palermo.subscribe("order.*", group="mail").')
    subscribes = Subscribes(
        group=check_group(group),
        topics=tuple(sorted({check_pattern(topic) for topic in topics})),
        from_start=bool(from_start),
    )
    check_options(options, SUBSCRIBABLE, "@palermo.subscribe")
    return lambda target: declare(target, _declared(subscribes, options))


def _declared(subscribes: Subscribes, options: Mapping[str, Any]) -> dict[str, Any]:
    return {**options, "name": subscribes.group, "arguments": "one", "subscribes": subscribes}


def subscriptions(registry: Registry, exchange: str, prefix: str) -> list[tuple[Subscription, bool]]:
    """What the jobs of this process subscribe to, and whether from the start."""
    found: list[tuple[Subscription, bool]] = []
    for name in registry.names():
        definition = registry.get(name)
        subscribes = definition.subscribes
        if subscribes is not None:
            subscription = Subscription(
                group=subscribes.group,
                queue=subscribes.queue(exchange, prefix),
                topics=subscribes.topics,
                function=wire_name(definition.target),
            )
            found.append((subscription, subscribes.from_start))
    return found
