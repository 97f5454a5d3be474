"""Where a job is at this moment, as far as a look at the broker tells: nothing is taken, and little is read."""

from palermo.broker import Broker, Keep, Stop, Verdict
from palermo.core.lifecycle import JobState
from palermo.core.message import Message
from palermo.core.topology import is_failed
from palermo.core.values import dataclass
from palermo.crew import RunningJob
from palermo.errors import BrokerUnavailable, NotBrowsable, NotFound
from palermo.failures import read_failed
from palermo.rows import CANCELLED, SCHEDULED
from palermo.timetable import Chosen

#: How many jobs of a queue are looked at, from its front and its end; how many queues, if none is named; and how many
#: failed jobs.
DEPTH, QUEUES, FAILED = 100, 20, 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a job is."""

    #: A JobState, "scheduled" or "cancelled"; "" if it was not found.
    state: str = ""
    #: The job itself, unless a worker has it.
    message: Message | None = None
    #: What its worker says of it, and the worker's id.
    running: RunningJob | None = None
    worker: str | None = None
    #: What could not be looked at, for people: it may be there. Empty for a look that missed nothing.
    unseen: tuple[str, ...] = ()

    @property
    def gone(self) -> bool:
        """Whether it is not there, for all that could be seen."""
        return not self.state and not self.unseen

    @property
    def alive(self) -> bool:
        """Whether it runs, or will."""
        return bool(self.state) and self.state != JobState.FAILED


async def locate(broker: Broker, id: str, queue: str = "") -> Place:
    """The job with this id; `queue` names the one it would wait in, "" if that is not known.

    Looks in the direction in which jobs move, and once more in case it moved the other way meanwhile.
    Raises BrokerUnavailable, BrokerRefused.
    """
    place = await _look(broker, id, queue)
    return place if place.state else await _look(broker, id, queue)


async def _look(broker: Broker, id: str, queue: str) -> Place:
    unseen: list[str] = []
    place = await _scheduled(broker, id, unseen) or await _waiting(broker, id, queue, unseen)
    place = place or await _running(broker, id) or await _failed(broker, id, unseen)
    return place or Place(unseen=tuple(unseen))


async def _scheduled(broker: Broker, id: str, unseen: list[str]) -> Place | None:
    try:
        found = await broker.scheduled(Chosen(ids=frozenset({id})), limit=1)
    except BrokerUnavailable as error:  # there are so many that looking takes long
        unseen.append(f"scheduled jobs ({error})")
        return None
    for message in found.messages:
        return Place(state=JobState.RETRYING if message.failure is not None else SCHEDULED, message=message)
    return None


async def _waiting(broker: Broker, id: str, queue: str, unseen: list[str]) -> Place | None:
    sizes = {info.name: info.pending for info in await broker.queues() if info.pending and not is_failed(info.name)}
    names = [queue] if queue in sizes else sorted(sizes, key=lambda name: sizes[name])
    if len(names) > QUEUES:
        unseen.append(f"the {len(names) - QUEUES} longest queues")
    for name in names[:QUEUES]:
        for newest in (False, True) if sizes[name] > DEPTH else (False,):
            try:
                page = await broker.browse(name, limit=DEPTH, newest=newest)
            except NotBrowsable:
                unseen.append(f"queue {name!r}, a quorum queue")
                break
            except NotFound:
                break
            for message in page.messages:
                if message.id == id:
                    state = JobState.RETRYING if message.failure is not None else JobState.PENDING
                    return Place(state=CANCELLED if id in page.cancelled else state, message=message)
        if sizes[name] > 2 * DEPTH:
            unseen.append(f"the middle of queue {name!r}, where {sizes[name] - 2 * DEPTH:,} jobs wait")
    return None


async def _running(broker: Broker, id: str) -> Place | None:
    for worker in await broker.workers():
        for job in worker.jobs:
            if job.id == id:
                return Place(state=JobState.WORKING, running=job, worker=worker.id)
    return None


async def _failed(broker: Broker, id: str, unseen: list[str]) -> Place | None:
    found: list[Message] = []
    seen = 0

    def judge(message: Message) -> Verdict:
        nonlocal seen
        seen += 1
        if message.id == id:
            found.append(message)
        return Stop() if found or seen >= FAILED else Keep()

    swept = await read_failed(broker, judge)
    if found:
        return Place(state=JobState.FAILED, message=found[0], worker=found[0].worker)
    if swept.total > seen:
        unseen.append(f"{swept.total - seen:,} failed jobs")
    return None
