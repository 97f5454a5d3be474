"""`@palermo.subscribe`: declares a function, or a class with `process`, that handles the events of some topics.

The result is a normal job whose only argument is the payload. It uses slots, retries and hooks, and its failures are in
the failed queue. Its wire name is the name of the group.
"""

from collections.abc import Mapping
from typing import Any, Unpack

from palermo.client.decorator import JobDecorator, declare
from palermo.client.workflow import WorkflowJob
from palermo.contract.events import Subscription
from palermo.core.topics import check_new_group, check_pattern
from palermo.errors import TopicInvalid
from palermo.jobs.definition import JobDefinition, JobSubscription, wire_name
from palermo.jobs.job_registry import Registry
from palermo.jobs.options import SUBSCRIBE_OPTIONS, SubscribeOptions, read_options


def subscribe(*topics: str, group: str, from_start: bool = False, **options: Unpack[SubscribeOptions]) -> JobDecorator:
    """Declare a function as the handler of these topics' events, once per group of workers.

    In a topic, `*` matches one word and `#` any number of words. `group` names the subscriber. Its events wait in a
    separate queue, even while none of its workers is running. With `from_start`, a new group starts with the kept
    events. The options are those of a job's runs: `retries`, `backoff`, `retry_for`, `retry_on`, `discard_on`,
    `timeout` and `keep_result`. The topic of the event is `palermo.current_job().topic`.

    A group has one handler; a second one raises JobNameTaken. Raises TopicInvalid and OptionInvalid.
    """
    if not topics:
        raise TopicInvalid('@palermo.subscribe got no topic; write @palermo.subscribe("order.*", group="mail").')
    subscribes = JobSubscription(
        group=check_new_group(group),
        topics=tuple(sorted({check_pattern(topic) for topic in topics})),
        from_start=bool(from_start),
    )
    given = read_options(options, SUBSCRIBE_OPTIONS, "@palermo.subscribe")

    def decorate(target: Any) -> Any:
        workflow = getattr(target, "definition", None)
        if isinstance(workflow, JobDefinition) and workflow.workflow:
            more = {"workflow": True, "deadline": workflow.deadline, "keep_result": workflow.keep_result}
            return declare(workflow.target, more | _declared(subscribes, given), WorkflowJob)
        return declare(target, _declared(subscribes, given))

    return decorate


def _declared(subscribes: JobSubscription, options: Mapping[str, Any]) -> dict[str, Any]:
    return {**options, "name": subscribes.group, "arguments": "one", "subscribes": subscribes}


def subscriptions(registry: Registry, exchange: str, prefix: str) -> list[tuple[Subscription, bool]]:
    """Return the subscriptions of this process's jobs, each with whether it starts with the kept events."""
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
