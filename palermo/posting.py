"""What a broker does at once: the contract for storing one message without a task, and from other threads.

It is nearly every enqueue. Whatever needs a question, a queue to be made or an error to be got over goes by
`Broker.publish`.
"""

from collections.abc import Callable
from typing import Protocol

from palermo.core.message import Message
from palermo.errors import PalermoError

#: Told how a publish ended: None where the message is stored, else why it is not, or may not be.
Ended = Callable[[PalermoError | None], None]

#: Begins to store a message, if that can be done at once, and says whether it did.
Post = Callable[[Message, Ended], bool]


class Posting(Protocol):
    """The part of a Broker that stores single messages at once."""

    def post(self, message: Message, ended: Ended) -> bool:
        """Begin to `publish` at once, where nothing stands against it; `ended` is told, perhaps before this returns.

        False where something is to be made or waited for first: then nothing was begun, and `publish` is to be used.
        It may be used after any error too, which it then may answer by more than to raise it. `ended` must not raise.
        """

    @property
    def outside(self) -> Post | None:
        """`post` for any thread but the session's own; None where only that one may post.

        `ended` is told in the session's thread, after True was returned or a moment before, and never after False.
        """

    def publish_here(self, message: Message) -> bool:
        """`publish` by any calling thread, which waits for the store alone.

        False where nothing was stored, and another way is due.
        """
