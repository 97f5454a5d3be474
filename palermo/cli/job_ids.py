"""Finds the job that is meant by the beginning of its id, as pages and listings show it.

Law: it takes nothing and changes nothing. A whole id is never taken for a beginning: if a job has exactly the id that
was given, that job is meant, and an id as Palermo makes it is not looked up at all.
"""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from palermo.cli.command_group import Context
from palermo.client.failed_queues import read_failed
from palermo.client.status import State, browsed_pages
from palermo.contract.broker import Broker
from palermo.contract.scheduled import ScheduledFilter
from palermo.contract.sweep import Keep, SweepDecision
from palermo.contract.trouble import unless_blocked
from palermo.core.journal_records import JournalLevel
from palermo.core.message import Message
from palermo.core.text import some_of
from palermo.core.topology import is_made_id
from palermo.errors import BrokerUnavailable, IdInvalid

#: The fewest characters that are taken for the beginning of an id.
FEWEST = 8

#: How many scheduled jobs are looked at, and how many that have ended.
_SCHEDULED, _ENDED = 10_000, 1_000

#: How many ids an error names.
_NAMED = 5

#: Gives the ids that begin with one of these texts, out of the places where the command looks.
FindIds = Callable[[Broker, tuple[str, ...]], Coroutine[Any, Any, set[str]]]


def whole_ids(context: Context, ids: Sequence[str], find: FindIds) -> tuple[str, ...]:
    """The ids that are meant by these texts; `find` looks for those that begin so.

    A text that no id begins with stays as it is: the command says what it says of an id that names nothing. Raises
    IdInvalid for the beginning of several ids.
    """
    beginnings = tuple(id for id in ids if may_be_beginning(id))
    if not beginnings:
        return tuple(ids)
    found = context.client().run(lambda broker: unless_blocked(broker, find(broker, beginnings)), again=True)
    return tuple(chosen_id(id, found) if id in beginnings else id for id in ids)


def known_ids(context: Context, ids: Sequence[str]) -> tuple[str, ...]:
    """`whole_ids` for jobs in any place, the journal included; an id of a job that is known stays as it is."""
    return tuple(_known_id(context, id) if may_be_beginning(id) else id for id in ids)


def _known_id(context: Context, beginning: str) -> str:
    from palermo.client import results
    from palermo.history.filters import HistoryFilter

    client = context.client()
    if results.status(client, client.job_by_id(beginning)).state is not State.UNKNOWN:
        return beginning
    found = client.run(lambda broker: unless_blocked(broker, all_ids(broker, (beginning,))), again=True)
    if client.settings.journal != JournalLevel.OFF:
        ended = context.inspector().history.list(HistoryFilter(text=beginning), limit=_ENDED)
        found |= {row["id"] for row in ended}
    return chosen_id(beginning, found)


def may_be_beginning(text: str) -> bool:
    """Whether this may be the beginning of an id."""
    return len(text) >= FEWEST and not is_made_id(text)


def chosen_id(text: str, found: Iterable[str]) -> str:
    """The id that is meant by this text, out of the ids that were found; the text itself if there is none.

    Raises IdInvalid for the beginning of several ids.
    """
    begun = sorted({id for id in found if id.startswith(text)})
    if text in begun or not begun:
        return text
    if len(begun) == 1:
        return begun[0]
    raise IdInvalid(
        f"{text!r} is the beginning of {len(begun):,} ids: {some_of(begun, _NAMED)}."
        " Write more of the one that you mean."
    )


async def failed_ids(broker: Broker, beginnings: tuple[str, ...]) -> set[str]:
    """The ids of failed jobs that begin so."""
    found: set[str] = set()

    def judge(message: Message) -> SweepDecision:
        if message.id.startswith(beginnings):
            found.add(message.id)
        return Keep()

    await read_failed(broker, judge)
    return found


async def scheduled_ids(broker: Broker, beginnings: tuple[str, ...]) -> set[str]:
    """The ids of scheduled jobs, and of jobs that wait to be tried again, that begin so; the first 10,000 are seen."""
    listing = await broker.scheduled(ScheduledFilter(), limit=_SCHEDULED)
    return {message.id for message in listing.messages if message.id.startswith(beginnings)}


async def live_ids(broker: Broker, beginnings: tuple[str, ...]) -> set[str]:
    """The ids of jobs that are scheduled, wait or run, and begin so, as far as they are looked at."""
    try:
        found = await scheduled_ids(broker, beginnings)
    except BrokerUnavailable:  # so many jobs are scheduled that looking takes long
        found = set()
    async for page in browsed_pages(broker):
        found.update(message.id for message in page.messages if message.id.startswith(beginnings))
    for worker in await broker.workers():
        found.update(job.id for job in worker.jobs if job.id.startswith(beginnings))
    return found


async def all_ids(broker: Broker, beginnings: tuple[str, ...]) -> set[str]:
    """The ids of jobs in all these places that begin so."""
    return await live_ids(broker, beginnings) | await failed_ids(broker, beginnings)
