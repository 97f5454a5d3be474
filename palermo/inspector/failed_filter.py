"""Filters of failed jobs, for `palermo failed`, the inspector and the web page."""

from collections.abc import Callable

from msgspec import Struct

from palermo.contract.rows import iso_instant
from palermo.core.conditions import check_conditions
from palermo.core.failure import fingerprint
from palermo.core.message import Message
from palermo.core.text import fits
from palermo.core.topology import worker_of

#: Gives the preview of a message's arguments as it is shown. A text filter searches nothing else of the arguments.
PreviewOf = Callable[[Message], str | None]


def fits_worker(slot: str, wanted: str) -> bool:
    """Whether the worker of a slot has the wanted text in its id; of a slot that is wanted its worker is meant."""
    return fits(worker_of(slot), worker_of(wanted))


def wire_preview(message: Message) -> str | None:
    """The preview as it is on the wire, including what is hidden."""
    return message.preview


class FailedFilter(Struct, frozen=True, kw_only=True):
    """The conditions that a failed job must meet, all at once; a filter without conditions matches every job.

    A name is matched as `palermo.core.text.fits` says. Raises OptionInvalid for a blank text.
    """

    #: The queue it came from.
    queue: str | None = None
    #: Its wire name.
    job: str | None = None
    #: The dotted name of its exception's class.
    error: str | None = None
    #: Text, in any letter case, at the beginning of its id, or in its name, its error, its traceback, or the preview of
    #: its arguments as it is shown (what the setting web_redact hides is not searched).
    text: str | None = None
    #: Unix seconds: it failed at this instant or later.
    since: float | None = None
    #: Unix seconds: it failed at this instant or before, or does not say when.
    until: float | None = None
    #: The fingerprint of its group, as `inspector.failed.groups` gives it.
    group: str | None = None

    #: True for jobs that somebody had requeued, and that have failed again; False for the others.
    requeued: bool | None = None
    #: The id of the worker on which it failed: `pid:123@host`.
    worker: str | None = None
    tenant: str | None = None

    def __post_init__(self) -> None:
        check_conditions(self)

    @property
    def everything(self) -> bool:
        """Whether the filter has no condition."""
        return self == FailedFilter()

    def matches(self, message: Message, shown: PreviewOf = wire_preview) -> bool:
        """Whether this message from `failed` meets the conditions."""
        failure = message.failure
        kind = failure.exception_class if failure else ""
        return (
            (self.queue is None or fits(message.queue, self.queue))
            and (self.job is None or fits(message.job, self.job))
            and (self.error is None or fits(kind, self.error))
            and (self.since is None or (failure is not None and failure.failed_at >= int(self.since)))
            and (self.until is None or (failure.failed_at if failure else 0) <= self.until)
            and (self.requeued is None or self.requeued is message.requeued)
            and (self.worker is None or fits_worker(message.worker or "", self.worker))
            and (self.tenant is None or fits(message.tenant, self.tenant))
            and (self.text is None or self._contains(message, self.text.casefold(), shown))
            and (self.group is None or (failure is not None and fingerprint(message.job, failure) == self.group))
        )

    @staticmethod
    def _contains(message: Message, wanted: str, shown: PreviewOf) -> bool:
        failure = message.failure
        texts = [message.job, shown(message)]
        texts += [failure.exception_class, failure.message, failure.stack_trace] if failure else []
        return message.id.casefold().startswith(wanted) or any(wanted in text.casefold() for text in texts if text)

    def __str__(self) -> str:
        asked = ((name, value) for name in self.__struct_fields__ if (value := getattr(self, name)) is not None)
        # Of instants their text, for people; one that no calendar holds stays a number.
        said = (
            (name, (iso_instant(value) if name in ("since", "until") else None) or repr(value)) for name, value in asked
        )
        return " ".join(f"{name}={text}" for name, text in said) or "everything"
