"""Why a job may run a second time: what a soak did to its worker, to the lines and to the queues."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime

from soak.records import Harm, Order, Run
from soak.traffic import PUBLISH

#: Seconds that a worker and its broker may need to settle a job that has ended, on a busy machine.
SETTLING = 3.0

#: Seconds for which a process may go on that is being killed, or whose parent was: it may even begin a job.
LINGERING = 0.5

#: What is said of a worker whose result was not wanted, and of one that runs a job a second time itself.
_DROPPED = re.compile(r"result dropped.* id=(\S+)")
_AGAIN = re.compile(r"runs again alone id=(\S+)|job interrupted, requeuing it id=(\S+)")

#: Seconds for which a line may have been silent before a worker says that it is lost, with heartbeats of 2.
SILENT = 9.0

#: Seconds from its publish in which a message that is not even run must have been put into `failed`.
FAILING = 60.0

#: Said by a worker whose line was lost, by a fault or because it or the broker could not say anything in time.
_LOST = re.compile(r"^(\S+) WARNING connection lost", re.MULTILINE)

#: Said by a worker that leads from then on.
_LEADS = "leading duty="

#: The ones that a kill of a process, and those that the loss of a connection, may be the reason of.
CHILDREN, LINKS = ("child", "template"), ("cut", "stall", "broker killed", "broker restarted")

#: What a leader moves: it confirms the copy in the job queue before it lets go of the original.
MOVED = ("tenant", "delayed")


class Reasons:
    """What may excuse a run, by harms, and by the workers' names and logs by the pid of the parent."""

    def __init__(self, harms: Sequence[Harm], names: Mapping[int, str], logs: Mapping[int, str]) -> None:
        self.harms = harms
        self._names = names
        self._dropped = {pid: set(_DROPPED.findall(log)) for pid, log in logs.items()}
        self._again = {pid: {a or b for a, b in _AGAIN.findall(log)} for pid, log in logs.items()}
        self._leaders = {pid for pid, log in logs.items() if _LEADS in log}
        # A program that enqueues with a key keeps the time itself while no worker does.
        self._lines_of_leaders = {names[pid] for pid in self._leaders} | {"publishers"}

    def again(self, order: Order, first: Run, second: Run) -> str:
        """Why the first of two runs was not the last; "" if there is no good reason."""
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
        # RabbitMQ has given up a silent worker and taken the job back, and the worker does not know it yet.
        if any(harm.at <= first.began and second.began <= harm.until for harm in self._cuts(second)):
            return "delivered first to a worker whose line was silent then"
        if self._tried_before(second, first.began):
            return "tried again by a worker that had it before, and whose line was lost"
        return ""

    def _tried_before(self, run: Run, before: float) -> bool:
        """Whether it repeats a run of this worker that was killed before it was noted, while the line was lost."""
        lost = any(harm.at <= run.began and harm.until >= before - SILENT for harm in self._cuts(run))
        return lost and run.id in self._again[run.parent]

    def published_twice(self, order: Order) -> bool:
        """Whether the line was lost, or silent for half the time that a publish has, while it was enqueued."""
        return order.ended - order.began >= PUBLISH / 2 or any(
            "publishers" in harm.links and harm.at <= order.ended and harm.until >= order.began for harm in self.harms
        )

    def unsettled(self, run: Run, until: float) -> str:
        """Why a run may not have been settled until another one began at that instant; "" if it must have been."""
        # Whose connection is lost no longer has the job alone.
        cuts = self._cuts(run)
        shared = any(harm.at <= until and harm.until >= run.began for harm in cuts)
        for harm in self.harms:
            mine = harm.kind == "parent" and harm.parent == run.parent
            if mine and _during(run, harm) and (harm.at <= until or shared):
                return "parent killed"
            if harm.kind in CHILDREN and _under(run, harm) and run.id in self._again[run.parent]:
                return "child of a shared pool killed"
        if run.id in self._dropped[run.parent]:
            return "result dropped, as the log says"
        ended = self._ended(run)
        for harm in cuts:
            if ended is not None and harm.at - SETTLING <= ended <= harm.until + SETTLING:
                return "acknowledgement lost with the connection"
            if ended is not None and ended < harm.at <= until and self._alarmed(ended, harm.at):
                return "acknowledgement not read during an alarm, and lost with the connection after it"
        return ""

    def _ended(self, run: Run) -> float | None:
        """When its worker had a result to settle: as the run ended, or as its process was killed."""
        kills = (harm.until for harm in self.harms if harm.kind in CHILDREN and _under(run, harm))
        return next(kills, None) if run.ended is None else run.ended

    def _alarmed(self, ended: float, lost: float) -> bool:
        """Whether an alarm held up what a worker sent from then on until shortly before its line was lost.

        During an alarm RabbitMQ does not read from connections that have published, nor their acknowledgements.
        """
        return any(
            harm.kind == "alarm" and harm.at <= ended + SETTLING and harm.until >= lost - SETTLING
            for harm in self.harms
        )

    def two_at_once(self, first: Run, second: Run) -> str:
        """Why a second job with its key began while the first ran; "" if there is no good reason."""
        if any(harm.at <= second.began and harm.until + SETTLING >= first.began for harm in self._cuts(first)):
            return "line of the first lost"
        kills = [harm for harm in self.harms if harm.kind == "parent" and harm.parent == first.parent]
        if any(harm.at <= second.began <= harm.until + LINGERING for harm in kills):
            return "parent of the first killed"
        return ""

    def dead(self, run: Run, by: float) -> bool:
        """Whether a run that never ended had been killed by then."""
        kills = [harm for harm in self.harms if harm.parent == run.parent and harm.at <= by]
        return any(harm.kind == "parent" or _under(run, harm) for harm in kills)

    def leader_lost(self, since: float, until: float) -> bool:
        """Whether meanwhile a worker that has led was killed, or its line was lost."""
        return any(
            harm.at <= until
            and harm.until >= since
            and (
                (harm.kind == "parent" and harm.parent in self._leaders)
                or (harm.kind in LINKS and bool(self._lines_of_leaders & harm.links))
            )
            for harm in self.harms
        )

    def refused(self, queue: str, run: Run) -> bool:
        """Whether a queue refused what came when this run ended, or was killed."""
        ended = run.began if run.ended is None else run.ended
        return any(
            queue in harm.queues and harm.kind == "refusal" and harm.at - SETTLING <= ended <= harm.until + SETTLING
            for harm in self.harms
        )

    def failed_twice(self, began: float, ended: float) -> bool:
        """Whether a worker or a line was lost soon after this message was published.

        Then the broker gives it to another worker although the first may have put it into `failed`.
        """
        return any(
            harm.kind in ("parent", *CHILDREN, *LINKS) and harm.until >= began and harm.at <= ended + FAILING
            for harm in self.harms
        )

    def crashed(self, ran: Sequence[Run], parent: int) -> bool:
        """Whether a process was killed under one of these runs of one job by this worker."""
        mine = [run for run in ran if run.parent == parent]
        kills = [harm for harm in self.harms if harm.kind in CHILDREN and harm.parent == parent]
        if not mine:  # killed before it could write that it begins
            return bool(kills)
        return any(_under(run, kill) for run in mine for kill in kills) or bool(kills and self._again[parent])

    def _cuts(self, run: Run) -> list[Harm]:
        name = self._names[run.parent]
        return [harm for harm in self.harms if harm.kind in LINKS and name in harm.links]


def lost_lines(names: Mapping[int, str], logs: Mapping[int, str], *, monotonic: float) -> list[Harm]:
    """What the workers say of lines that they have lost; `monotonic` is what the other clock is behind the time."""
    found = []
    for pid, log in logs.items():
        for said in _LOST.findall(log):
            at = datetime.fromisoformat(said).timestamp() - monotonic
            found.append(Harm(kind="cut", at=at - SILENT, until=at, links=frozenset({names[pid]})))
    return found


def _during(run: Run, kill: Harm) -> bool:
    """Whether it was not settled yet when something was killed."""
    return kill.until + LINGERING >= run.began and (run.ended is None or run.ended + SETTLING >= kill.at)


def _under(run: Run, kill: Harm) -> bool:
    return kill.process in (run.process, run.template) and _during(run, kill)
