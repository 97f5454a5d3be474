"""The answers of RabbitMQ about a queue: whether it exists, what it holds, and how it differs from a declaration."""

import re
from dataclasses import dataclass

from palermo.errors import PalermoError

#: A pattern for the text of error 406. RabbitMQ names the first argument that differs.
_INEQUIVALENT = r"inequivalent arg '(?P<name>[^']+)'.*received (?P<ours>.+) but current is (?P<theirs>.+)$"


@dataclass(frozen=True, slots=True)
class Probe:
    """The answer to a passive declare of a queue, which creates nothing."""

    exists: bool
    #: Whether the queue is exclusive to another connection: RabbitMQ tells nothing more about such a queue.
    locked: bool = False
    #: Why there are no counts: the queue does not exist, or it is locked.
    error: PalermoError | None = None
    ready: int = 0
    subscribed: int = 0

    @property
    def messages(self) -> int:
        """How many messages wait in the queue. Raises NotFound if it does not exist, BrokerRefused if it is locked."""
        if self.error is not None:
            raise self.error
        return self.ready

    @property
    def consumers(self) -> int:
        """How many consumers the queue has. Raises the same as `messages`."""
        if self.error is not None:
            raise self.error
        return self.subscribed


@dataclass(frozen=True, slots=True)
class Difference:
    """How a queue or exchange that exists differs from its declaration: what error 406 says."""

    #: The error's whole text.
    text: str
    #: The first argument that differs, with the value that was declared and the one that is there; "" if RabbitMQ
    #: gives another reason.
    argument: str = ""
    ours: str = ""
    theirs: str = ""

    @classmethod
    def parse(cls, text: str) -> "Difference":
        """The difference from the text of an error 406."""
        found = re.search(_INEQUIVALENT, text)
        if found is None:
            return cls(text)
        return cls(text, found["name"], found["ours"], found["theirs"].split(" (code")[0].rstrip("."))
