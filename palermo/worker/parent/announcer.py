"""What a worker tells the broker at the beginning of each session: its groups, and which of its jobs are unique."""

import asyncio
import itertools
import logging
import random
from collections.abc import Iterable

from palermo.contract.broker import Broker
from palermo.contract.events import Subscription
from palermo.errors import BrokerError
from palermo.worker.parent.broker_session import backoff, check_cancelled
from palermo.worker.registered import Registered

log = logging.getLogger("palermo.worker")

#: Seconds that the worker waits before it takes jobs until its unique jobs are announced.
_TIMEOUT = 1.0


class Announcer:
    """Announces the jobs and groups of one worker."""

    def __init__(self, registered: Registered) -> None:
        self._registered = registered
        self._task: asyncio.Task[None] | None = None

    async def session_opens(self, broker: Broker) -> None:
        """Subscribe the groups and announce the unique jobs, before the worker takes jobs."""
        await subscribe_groups(broker, self._registered.subscriptions)
        self.session_ends()
        self._task = asyncio.ensure_future(self._announce(broker))
        # If that is quick: an alarm of RabbitMQ keeps records from being stored, and jobs go on.
        await asyncio.wait({self._task}, timeout=_TIMEOUT)

    def session_ends(self) -> None:
        """Announce no more in this session."""
        if self._task is not None:
            self._task.cancel()

    async def _announce(self, broker: Broker) -> None:
        """Announce which jobs are unique; again until that is stored, or the session has ended."""
        for attempt in itertools.count(1):
            try:
                await broker.keys.announce(self._registered.jobs, self._registered.unique)
                return
            except BrokerError as error:
                check_cancelled()
                log.warning("unique jobs are not announced yet broker=%s error=%r", broker.describe(), str(error))
            await asyncio.sleep(backoff(attempt, random.random()))


async def subscribe_groups(broker: Broker, subscriptions: Iterable[tuple[Subscription, bool]]) -> None:
    """Subscribe these groups to their events. A group that begins from the start gets the stored events too.

    The first time this takes as long as copying all of these to the group.
    """
    for subscription, from_start in subscriptions:
        copied = await broker.events.subscribe(subscription, from_start=from_start)
        log.info(
            "subscribed group=%s topics=%s queue=%s%s",
            subscription.group,
            ",".join(subscription.topics),
            subscription.queue,
            f" from_before={copied}" if copied else "",
        )
