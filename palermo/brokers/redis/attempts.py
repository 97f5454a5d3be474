"""The attempts to store jobs, each with a token by which Redis knows one that is sent again over another session."""

import secrets
import time
from itertools import count, islice

from palermo.core.message import Message

#: The most tokens of one client that Redis remembers.
_MOST = 1024

#: Seconds for which Redis remembers a token, at least.
_AT_LEAST = 60.0


class Attempts:
    """The attempts of one client that have no answer yet. Handed on from each session to the next; for any thread."""

    def __init__(self, timeout: float) -> None:
        """`timeout` is the time of a publish, in seconds: so long it is sent again and again."""
        self._client = secrets.token_hex(8)
        self._numbers = count()
        self._seconds = max(2 * timeout, _AT_LEAST)
        #: By the object's own number: the message, its token's number, and when it is forgotten; the oldest first.
        self._unanswered: dict[int, tuple[Message, int, float]] = {}

    def begin(self, first: Message) -> tuple[str, int, int]:
        """The token of the attempt to store this message, or a batch that begins with it, for scripts/publish.lua.

        The same token as before if the same object was begun and got no answer.
        """
        unanswered, now = self._unanswered, time.monotonic()
        # The message is kept, so that no other object gets its number meanwhile.
        _, number, _ = unanswered.setdefault(id(first), (first, next(self._numbers), now + self._seconds))
        for object_number, (_, _, until) in list(islice(unanswered.items(), 2)):
            if until < now:
                unanswered.pop(object_number, None)
        return f"sent:{self._client}:{number % _MOST}", number, int(self._seconds)

    def end(self, first: Message) -> None:
        """Forget an attempt that succeeded."""
        self._unanswered.pop(id(first), None)
