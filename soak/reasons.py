"""Valid reasons for a job to run a second time: faults in its worker, its connection or its queue."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime

from soak.records import Fault, Order, Run
from soak.traffic import PUBLISH

#: Seconds that a worker and its broker may need to settle a finished job on a busy machine.
SETTLING = 3.0

#: Seconds for which a process may continue after it or its parent is killed. It may even start a job.
LINGERING = 0.5

#: Log lines of a worker whose result was dropped, and of one that runs a job a second time itself.
_DROPPED = re.compile(r"result dropped.* id=(\S+)")
_AGAIN = re.compile(r"runs again alone id=(\S+)|job interrupted, requeuing it id=(\S+)")

#: Maximum seconds of silence before a worker notices that its connection is lost, with heartbeats of 2 seconds.
SILENT = 9.0

#: Seconds from its publish within which an undecodable message must be in `failed`.
FAILING = 60.0

#: Logged by a worker that has lost its connection, because of a fault or because it or the broker was too slow.
_LOST = re.compile(r"^(\S+) WARNING connection lost", re.MULTILINE)

#: Logged by a worker that becomes the leader.
_LEADS = "leading duty="

#: The kinds of faults that kill a child process, and those that break a connection.
CHILDREN, LINKS = ("child", "template"), ("cut", "stall", "broker killed", "broker restarted")

#: The jobs that a leader moves. It waits until the copy in the job queue is confirmed before it removes the original.
MOVED = ("tenant", "delayed")


class Reasons:
    """Finds the reasons for repeated runs from faults and from workers' names and logs, by the parent's pid."""

    def __init__(self, faults: Sequence[Fault], names: Mapping[int, str], logs: Mapping[int, str]) -> None:
        self.faults = faults
        self._names = names
        self._dropped = {pid: set(_DROPPED.findall(log)) for pid, log in logs.items()}
        self._again = {pid: {a or b for a, b in _AGAIN.findall(log)} for pid, log in logs.items()}
        self._leaders = {pid for pid, log in logs.items() if _LEADS in log}
        # While no worker leads, a program that enqueues with a key takes over.
        self._lines_of_leaders = {names[pid] for pid in self._leaders} | {"publishers"}

    def again(self, order: Order, first: Run, second: Run) -> str:
        """Why the first of two runs was not the last, or "" without a valid reason."""
        if reason := self.unsettled(first, second.began):
            return reason
        if self.published_twice(order):
            return "published twice, the connection was lost before the confirm"
        if order.kind in MOVED and self.leader_lost(order.began, second.began):
            return "moved twice, its leader was killed or lost its line"
        if order.raises and self.refused("failed", first):
            return "could not be put into failed, which was full"
        if second.id in self._dropped[second.parent]:
            return "delivered first to a worker whose line was lost, as the log says"
        # RabbitMQ has given up a silent worker and requeued the job, and the worker hasn't noticed yet.
        if any(fault.at <= first.began and second.began <= fault.until for fault in self._cuts(second)):
            return "delivered first to a worker whose line was silent then"
        if self._tried_before(second, first.began):
            return "tried again by a worker that had it before, and whose line was lost"
        return ""

    def _tried_before(self, run: Run, before: float) -> bool:
        """Whether this worker lost its connection, and retries a run that was killed before it was recorded."""
        lost = any(fault.at <= run.began and fault.until >= before - SILENT for fault in self._cuts(run))
        return lost and run.id in self._again[run.parent]

    def published_twice(self, order: Order) -> bool:
        """Whether the connection was lost, or silent for half of the publish timeout, during the enqueue."""
        return order.ended - order.began >= PUBLISH / 2 or any(
            "publishers" in fault.links and fault.at <= order.ended and fault.until >= order.began
            for fault in self.faults
        )

    def unsettled(self, run: Run, until: float) -> str:
        """Why a run may not have been settled when another started at `until`, or "" if it must have been."""
        # After losing its connection, a worker no longer has the job to itself.
        cuts = self._cuts(run)
        shared = any(fault.at <= until and fault.until >= run.began for fault in cuts)
        for fault in self.faults:
            mine = fault.kind == "parent" and fault.parent == run.parent
            if mine and _during(run, fault) and (fault.at <= until or shared):
                return "parent killed"
            if fault.kind in CHILDREN and _under(run, fault) and run.id in self._again[run.parent]:
                return "child of a shared pool killed"
        if run.id in self._dropped[run.parent]:
            return "result dropped, as the log says"
        ended = self._ended(run)
        for fault in cuts:
            if ended is not None and fault.at - SETTLING <= ended <= fault.until + SETTLING:
                return "acknowledgement lost with the connection"
            if ended is not None and ended < fault.at <= until and self._alarmed(ended, fault.at):
                return "acknowledgement not read during an alarm, and lost with the connection after it"
        return ""

    def _ended(self, run: Run) -> float | None:
        """Return when the worker had a result to settle: when the run ended, or its process was killed."""
        kills = (fault.until for fault in self.faults if fault.kind in CHILDREN and _under(run, fault))
        return next(kills, None) if run.ended is None else run.ended

    def _alarmed(self, ended: float, lost: float) -> bool:
        """Whether an alarm delayed the worker's messages from `ended` until shortly before its connection was lost.

        During an alarm, RabbitMQ doesn't read from connections that have published, not even acknowledgements.
        """
        return any(
            fault.kind == "alarm" and fault.at <= ended + SETTLING and fault.until >= lost - SETTLING
            for fault in self.faults
        )

    def two_at_once(self, first: Run, second: Run) -> str:
        """Why a second job with the same key started during the first run, or "" without a valid reason."""
        if any(fault.at <= second.began and fault.until + SETTLING >= first.began for fault in self._cuts(first)):
            return "line of the first lost"
        kills = [fault for fault in self.faults if fault.kind == "parent" and fault.parent == first.parent]
        if any(fault.at <= second.began <= fault.until + LINGERING for fault in kills):
            return "parent of the first killed"
        return ""

    def dead(self, run: Run, by: float) -> bool:
        """Whether an unfinished run had been killed by then."""
        kills = [fault for fault in self.faults if fault.parent == run.parent and fault.at <= by]
        return any(fault.kind == "parent" or _under(run, fault) for fault in kills)

    def leader_lost(self, since: float, until: float) -> bool:
        """Whether a worker that has led was killed or lost its connection in this period."""
        return any(
            fault.at <= until
            and fault.until >= since
            and (
                (fault.kind == "parent" and fault.parent in self._leaders)
                or (fault.kind in LINKS and bool(self._lines_of_leaders & fault.links))
            )
            for fault in self.faults
        )

    def refused(self, queue: str, run: Run) -> bool:
        """Whether a queue refused messages when this run ended or was killed."""
        ended = run.began if run.ended is None else run.ended
        return any(
            queue in fault.queues and fault.kind == "refusal" and fault.at - SETTLING <= ended <= fault.until + SETTLING
            for fault in self.faults
        )

    def failed_twice(self, began: float, ended: float) -> bool:
        """Whether a worker was killed or a connection was lost soon after this message was published.

        The broker may then deliver it to another worker although it is already in `failed`.
        """
        return any(
            fault.kind in ("parent", *CHILDREN, *LINKS) and fault.until >= began and fault.at <= ended + FAILING
            for fault in self.faults
        )

    def crashed(self, ran: Sequence[Run], parent: int) -> bool:
        """Whether a process of this worker was killed during one of these runs of a job."""
        mine = [run for run in ran if run.parent == parent]
        kills = [fault for fault in self.faults if fault.kind in CHILDREN and fault.parent == parent]
        if not mine:  # killed before it could record the start
            return bool(kills)
        return any(_under(run, kill) for run in mine for kill in kills) or bool(kills and self._again[parent])

    def _cuts(self, run: Run) -> list[Fault]:
        name = self._names[run.parent]
        return [fault for fault in self.faults if fault.kind in LINKS and name in fault.links]


def lost_lines(names: Mapping[int, str], logs: Mapping[int, str], *, monotonic: float) -> list[Fault]:
    """Return the lost connections that the workers logged. `monotonic` is the difference between the wall clock and the
    monotonic clock.
    """
    found = []
    for pid, log in logs.items():
        for logged_at in _LOST.findall(log):
            at = datetime.fromisoformat(logged_at).timestamp() - monotonic
            found.append(Fault(kind="cut", at=at - SILENT, until=at, links=frozenset({names[pid]})))
    return found


def _during(run: Run, kill: Fault) -> bool:
    """Whether the run was not settled at the time of this kill."""
    return kill.until + LINGERING >= run.began and (run.ended is None or run.ended + SETTLING >= kill.at)


def _under(run: Run, kill: Fault) -> bool:
    return kill.process in (run.process, run.template) and _during(run, kill)
