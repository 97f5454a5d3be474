"""Drops failed jobs that are too old or too many: when a session begins, and after failures once a minute at most."""

import asyncio

from palermo.client.failed_queues import FailedRetention
from palermo.contract.broker import Broker
from palermo.settings.settings import Settings
from palermo.worker.parent.broker_session import BrokerSessions


class Retention:
    """The retention of failed jobs by one worker."""

    def __init__(self, settings: Settings, sessions: BrokerSessions) -> None:
        self._retention = FailedRetention(settings)
        self._sessions = sessions
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def session_opened(self, broker: Broker) -> None:
        """Drop what is too old or too many now."""
        if self._retention.wanted:
            task = asyncio.ensure_future(self._retention.run(broker))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def job_failed(self) -> None:
        """Drop what is too old or too many soon."""
        if self._retention.wanted and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._retention.due_in, self._run)

    def _run(self) -> None:
        self._timer = None
        if (session := self._sessions.current) is not None:
            self.session_opened(session.broker)

    def close(self) -> None:
        """Drop nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
