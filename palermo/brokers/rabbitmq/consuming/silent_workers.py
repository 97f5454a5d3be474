"""Finds connected workers that don't answer, because they are stopped (SIGSTOP), swapped out, or blocked.

RabbitMQ counts such a worker, and doesn't requeue its jobs, until it misses its heartbeats. Its identity and jobs come
from its last answer to this session, or else from its last record in the run log, which has its counters and long jobs.
It is still connected if its request queue exists. A silent worker without such an answer or record is only counted, and
only if a classic queue counts the workers.

If the user has no permission to send requests, all workers are found in this way, as "unasked" instead of "silent".
"""

from collections.abc import Awaitable, Callable
from functools import partial

from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.stream import Record
from palermo.brokers.rabbitmq.cluster.worker_control import Reports
from palermo.brokers.rabbitmq.consuming.run_log import JobStart, RunRecord, View, run_log_stream
from palermo.contract.worker_info import (
    SILENT,
    UNASKED,
    ReportedArguments,
    RunningJob,
    WorkerInfo,
    WorkerList,
    counters_of,
    unidentified_worker,
)
from palermo.core.topology import CLASSIC
from palermo.errors import PalermoError


class SilentWorkers:
    """The last answers of all workers in one session."""

    def __init__(
        self,
        exchange: str,
        publisher: Callable[[], Awaitable[Publisher]],
        reading: Callable[[], Awaitable[Connection]],
        *,
        kind: str,
    ) -> None:
        """`reading` returns the connection for reading. `kind` is the type of the queue that counts the workers."""
        self._stream = run_log_stream(exchange, publisher)
        self._reading = reading
        #: Whether workers of which only the number is known are listed. Not with a quorum queue, which also counts
        #: workers of a node that is down, even if they have moved to another node.
        self._lists_unknown = kind == CLASSIC
        #: The last answer by the worker's queue for requests.
        self._last: dict[str, WorkerInfo] = {}

    async def add_to(self, reports: Reports) -> WorkerList:
        """The workers that answered, and those that didn't."""
        answered = {inbox for inbox, _ in reports.answers}
        if reports.missing == 0:
            self._last = {inbox: info for inbox, info in reports.answers if inbox}
            return reports.workers
        self._last |= {inbox: info for inbox, info in reports.answers if inbox}
        silent = await self._still_there(answered)
        if reports.missing is not None and len(silent) < reports.missing:
            await self.read_run_log(answered)
            silent = await self._still_there(answered)
        unknown = max(0, (reports.missing or 0) - len(silent)) if self._lists_unknown or not reports.may_ask else 0
        silent += [unidentified_worker(number + 1) for number in range(unknown)]
        if not reports.may_ask:
            silent = [replace(info, state=UNASKED) for info in silent]
        # It may have started a job since its last answer.
        return WorkerList([*reports.workers, *silent], complete=False)

    async def _still_there(self, answered: set[str]) -> list[WorkerInfo]:
        found, connection = list[WorkerInfo](), await self._reading()
        for inbox, info in list(self._last.items()):
            if inbox in answered:
                continue
            if (await connection.probe(inbox)).exists:
                found.append(replace(info, answers=False))
            else:
                self._last.pop(inbox, None)  # another call may have removed it in the meantime
        return found

    async def read_run_log(self, answered: set[str]) -> None:
        """Find the silent workers' last records. Raises the error of a lost session."""
        view = View()

        def learn(record: Record) -> None:
            view.add(record)

        connection = await self._reading()
        try:
            follower = await self._stream.follow(connection, learn)
        except PalermoError:
            if connection.error is not None:
                raise
            return  # the stream is down, so only the last answers are known
        if follower is not None:
            await follower.close()
        for seen in view.seen.values():
            worker = connection.unreadable.attempt(self._stream.name, seen, partial(_worker, seen))
            if seen.inbox not in answered and worker is not None:
                self._last.setdefault(seen.inbox, worker)


def _worker(seen: RunRecord) -> WorkerInfo:
    """The worker as its record describes it."""
    pid, _, host = seen.worker.removeprefix("pid:").partition("@")
    jobs = list[RunningJob]()
    for slot, id in enumerate(sorted(seen.runs), start=1):
        start = seen.jobs.get(id) or JobStart(started_at=seen.since)
        arguments = ReportedArguments(preview=start.preview)
        jobs.append(
            RunningJob(
                id=id, job=start.job, queue=start.queue, slot=slot, started_at=start.started_at, arguments=arguments
            )
        )
    return WorkerInfo(
        id=seen.worker,
        host=host,
        pid=int(pid) if pid.isdecimal() else 0,
        queues=seen.queues,
        state=SILENT,
        started_at=seen.since,
        jobs=tuple(jobs),
        seen_at=seen.at,
        **counters_of(seen.counters),
    )
