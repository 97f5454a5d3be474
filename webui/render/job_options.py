"""The options that a job declares, as pages show them: by name, with the values as text."""

from typing import Any

from palermo.contract.recurring import RecurringJob
from palermo.core.failure import printable
from palermo.jobs.definition import JobDefinition, JobSubscription
from palermo.settings.settings import Settings
from palermo.webui.render.formats import took

#: The options that are shown if they are declared, in this order; those of the second line are in seconds.
_PLAIN = (
    *("priority", "retries", "backoff", "retry_on", "discard_on", "limit", "limit_key", "rate", "unique", "unique_key"),
    *("on_duplicate", "tenant", "share", "batch", "keep_result", "default", "arguments", "serializer", "compression"),
    *("sign", "recurring", "subscribes"),
)
_DURATIONS = ("timeout", "lock_for", "expires", "delay", "retry_for", "dedupe", "debounce", "throttle", "batch_wait")


def job_options(definition: JobDefinition, settings: Settings) -> list[tuple[str, str]]:
    """The options that a job declares, and its queue. Each is a name and a text."""
    found = [("queue", printable(definition.queue_in(settings)))]
    for name in (*_PLAIN, *_DURATIONS):
        value = getattr(definition, name)
        if value is not None and value is not False and value != "" and value != 0.0:
            found.append((name, printable(took(value) if name in _DURATIONS else _text(value))))
    return found


def _text(value: Any) -> str:
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, RecurringJob):
        return value.in_words()
    if isinstance(value, JobSubscription):
        return f"{', '.join(value.topics)} as {value.group}"
    if isinstance(value, list | tuple):
        return ", ".join(_text(each) for each in value)
    return f"by {getattr(value, '__qualname__', type(value).__name__)}()" if callable(value) else str(value)
