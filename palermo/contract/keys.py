"""Unique keys: the part of a broker that decides about the keys of unique jobs, `Broker.keys`.

One place decides about a key: the leader, or the transaction that stores the job. So of all that happens to a key at
once, one thing is first. palermo/core/unique_rules.py has the rule. A worker runs a job with a key only after it was
admitted: palermo.contract.broker.Consumer.admit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from palermo.core.unique_keys import Key, KeyRequest
from palermo.core.unique_rules import EnqueueAnswer

#: The largest body, in bytes, of a job that is enqueued with a key, debounced or throttled.
MAX_KEYED_BODY = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanedKey:
    """A key whose holder is nowhere: neither in its queue nor with a worker."""

    key: str
    id: str
    queue: str
    #: When it took the key, in Unix seconds.
    since: float


class UniqueKeys(Protocol):
    """The keys of unique jobs. All methods raise BrokerUnavailable."""

    async def enqueue(self, claims: Sequence[KeyRequest]) -> list[EnqueueAnswer]:
        """Store these jobs, each if its key is free; returns an answer for each. Job and key are stored together.

        Called again with the same claims, it answers the same and does nothing more. Raises PublishRefused for a body
        above MAX_KEYED_BODY.
        """

    async def known(self) -> list[Key]:
        """All keys about which something is known now, by name."""

    async def free(self, names: Iterable[str]) -> list[str]:
        """Take these keys from their holders, whatever those do, and publish the jobs that were to run next.

        Returns the keys that there were. A waiting job takes its key when it is started, if no other job has it then.
        """

    async def orphaned(self) -> list[OrphanedKey]:
        """Keys whose holders are nowhere, as far as that can be seen without harm; looking takes a second or more."""
