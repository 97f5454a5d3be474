"""A user's changes to a waiting or scheduled job."""

from msgspec.structs import replace

from palermo.core.due_times import moved_to
from palermo.core.message import Message
from palermo.core.plain import PlainWithMessages
from palermo.core.topology import MAX_PRIORITY
from palermo.core.unique_rules import with_arguments_of
from palermo.errors import OptionInvalid


def check_priority(priority: int | None) -> int | None:
    """Return the priority if it is valid for a job. Raises OptionInvalid."""
    if priority is not None and not 0 <= priority <= MAX_PRIORITY:
        raise OptionInvalid(f"priority is {priority}; give a number from 0 to {MAX_PRIORITY}.")
    return priority


class JobEdit(PlainWithMessages, frozen=True, kw_only=True):
    """Changes to one job: other arguments, another queue, priority or time. A field that is None changes nothing."""

    #: A message with the new arguments.
    content: Message | None = None
    queue: str | None = None
    priority: int | None = None
    #: Unix seconds.
    run_at: float | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing changes."""
        return self == JobEdit()

    def applied_to(self, message: Message) -> Message:
        """The message with these changes, under the same id."""
        if self.content is not None:
            # With new arguments, even equal ones, the job starts from the beginning.
            message = replace(with_arguments_of(message, self.content), saved=None)
        if self.queue is not None:
            message = replace(message, queue=self.queue)
        if self.priority is not None:
            message = replace(message, properties={**message.properties, "priority": self.priority})
        return message if self.run_at is None else moved_to(message, self.run_at)
