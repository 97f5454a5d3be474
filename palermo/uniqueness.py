"""What a broker does with the keys of unique jobs: the part of the contract that Broker.keys has from here.

Of all that happens to one key at once, one thing is first: one session decides, the one that keeps the time, or
the transaction that stores the job. By which rule is palermo/core/unique.py. That a job with a key does not run before
it was admitted is what workers see to: palermo.broker.Consumer.admit.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from palermo.core.keys import Claim, Key
from palermo.core.unique import Answer
from palermo.core.values import dataclass

#: The largest body, in bytes, of a job that is enqueued with a key, debounced or throttled.
MAX_KEYED_BODY = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """A key whose holder is nowhere: neither in its queue nor with a worker."""

    key: str
    id: str
    queue: str
    #: Unix seconds of its taking the key.
    since: float


class Keys(Protocol):
    """See the module's first lines. All raise BrokerUnavailable."""

    async def enqueue(self, claims: Sequence[Claim]) -> list[Answer]:
        """Store these jobs, each if its key is free; what came of each. Job and key are stored together.

        Asked again with the same claims it answers the same and does nothing more. Raises PublishRefused for a body
        above MAX_KEYED_BODY.
        """

    async def known(self) -> list[Key]:
        """All keys of which something is known now, by name."""

    async def free(self, names: Iterable[str]) -> list[str]:
        """Take these keys from their holders, whatever those do, and publish what was to run next; which there were.

        A job that waits takes its key when it is started, if no other has it then.
        """

    async def strays(self) -> list[Stray]:
        """Keys whose holders are nowhere, as far as that can be seen without harm; looking takes a second or more."""
