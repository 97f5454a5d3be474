"""Which failed jobs are meant: the filters of `palermo failed`, of the inspector and of the web page."""

from dataclasses import fields
from fnmatch import fnmatchcase

from palermo.core.failure import fingerprint
from palermo.core.message import Message
from palermo.core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedFilter:
    """What a failed job must be, all of it at once; a filter that asks for nothing matches every job.

    Names may hold `*`, `?` and `[…]`.
    """

    #: The queue it came from.
    queue: str | None = None
    #: Its wire name.
    job: str | None = None
    #: The dotted name of its exception's class, or the last part of that name.
    error: str | None = None
    #: Text, in any case of letters, in its error message, its traceback, its arguments' preview or its id.
    text: str | None = None
    #: Unix seconds: it failed at this instant or later.
    since: float | None = None
    #: Unix seconds: it failed at this instant or before, or does not say when.
    until: float | None = None
    #: The fingerprint of its kind, as `Inspector.groups` gives it.
    group: str | None = None

    @property
    def everything(self) -> bool:
        """Whether it asks for nothing."""
        return all(getattr(self, field.name) is None for field in fields(self))

    def matches(self, message: Message) -> bool:
        """Whether this message from `failed` is meant."""
        failure = message.failure
        kind = failure.exception_class if failure else ""
        return (
            (self.queue is None or named(message.queue, self.queue))
            and (self.job is None or named(message.job, self.job))
            and (self.error is None or named(kind, self.error) or named(kind.rpartition(".")[2], self.error))
            and (self.since is None or (failure is not None and failure.failed_at >= int(self.since)))
            and (self.until is None or (failure.failed_at if failure else 0) <= self.until)
            and (self.text is None or self._says(message, self.text.casefold()))
            and (self.group is None or (failure is not None and fingerprint(message.job, failure) == self.group))
        )

    @staticmethod
    def _says(message: Message, wanted: str) -> bool:
        failure = message.failure
        texts = (message.id, message.preview, failure and failure.message, failure and failure.stack_trace)
        return any(wanted in text.casefold() for text in texts if text)

    def __str__(self) -> str:
        asked = (
            (field.name, getattr(self, field.name)) for field in fields(self) if getattr(self, field.name) is not None
        )
        return " ".join(f"{name}={value!r}" for name, value in asked) or "everything"


def named(name: str, pattern: str) -> bool:
    """Whether a name is the one asked for, or fits its pattern."""
    return name == pattern or fnmatchcase(name, pattern)
