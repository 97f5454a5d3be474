"""Finds the job that is meant by the beginning of its id, as pages and listings show it.

Law: it takes nothing and changes nothing. A whole id is never taken for a beginning: if a job has exactly the id that
was given, that job is meant, and an id as Palermo makes it is not looked up at all.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from palermo.cli.command_group import Context, misuse
from palermo.cli.options import wanted_jobs
from palermo.client.status import State, find_status
from palermo.contract.finding import CANCELLED, SCHEDULED
from palermo.contract.trouble import unless_blocked
from palermo.core.journal_records import JournalLevel
from palermo.core.lifecycle import JobState
from palermo.core.text import some_of
from palermo.core.topology import is_made_id
from palermo.errors import IdInvalid
from palermo.views.filter import JobFilter

#: Minimum number of characters of the beginning of an id.
FEWEST = 8

#: Maximum number of ended jobs that are searched.
_ENDED = 1_000

#: Number of ids that an error names.
_NAMED = 5

#: The states of jobs for commands about scheduled jobs, and about failed ones.
SCHEDULED_JOBS, FAILED_JOBS = (SCHEDULED, JobState.RETRYING, CANCELLED), (JobState.FAILED,)

#: The states of jobs that can be cancelled.
LIVE_JOBS = (*SCHEDULED_JOBS, JobState.PENDING, JobState.WORKING)


def whole_ids(context: Context, ids: Sequence[str], states: Collection[str]) -> tuple[str, ...]:
    """The ids of jobs in one of these states that start with these texts.

    A text that matches no id is returned unchanged, so that the command reports the unknown id. Raises IdInvalid for
    the beginning of several ids.
    """
    beginnings = tuple(id for id in ids if may_be_beginning(id))
    if not beginnings:
        return tuple(ids)
    found = _begun(context, beginnings, states)
    return tuple(chosen_id(id, found) if id in beginnings else id for id in ids)


def known_ids(context: Context, ids: Sequence[str]) -> tuple[str, ...]:
    """`whole_ids` for jobs in any place, including the journal; the id of a known job is returned unchanged."""
    return tuple(_known_id(context, id) if may_be_beginning(id) else id for id in ids)


def _known_id(context: Context, beginning: str) -> str:
    client = context.client()
    if client.watch(find_status(client, client.job_by_id(beginning))).state is not State.UNKNOWN:
        return beginning
    found = _begun(context, (beginning,), (*LIVE_JOBS, *FAILED_JOBS))
    if client.settings.journal != JournalLevel.OFF:
        ended = context.inspector().history.list(JobFilter(text=beginning), limit=_ENDED)
        found |= {row["id"] for row in ended}
    return chosen_id(beginning, found)


def may_be_beginning(text: str) -> bool:
    """Whether this may be the beginning of an id."""
    return len(text) >= FEWEST and not is_made_id(text)


def chosen_id(text: str, found: Iterable[str]) -> str:
    """The id for this text among the ids that were found; the text itself if none matches.

    Raises IdInvalid for the beginning of several ids.
    """
    begun = sorted({id for id in found if id.startswith(text)})
    if text in begun or not begun:
        return text
    if len(begun) == 1:
        return begun[0]
    raise IdInvalid(
        f"{text!r} is the beginning of {len(begun):,} ids: {some_of(begun, _NAMED)}."
        " Give more characters of one of them."
    )


def _begun(context: Context, beginnings: tuple[str, ...], states: Collection[str]) -> set[str]:
    """The ids of jobs in these states that start so, as far as the broker can search them."""
    failed = JobState.FAILED in states
    found = context.client().run(
        lambda broker: unless_blocked(broker, broker.find(beginnings, failed=failed, beginnings=True)), again=True
    )
    return {place.id for place in found.jobs if place.state in states}


def chosen_jobs(
    context: Context, states: Collection[str], filters: Mapping[str, str | None], *, ids: Sequence[str], every: bool
) -> tuple[str, ...] | JobFilter:
    """The given ids, completed to ids of jobs in these states; or for `--all` the filter. Raises click.UsageError."""
    if bool(ids) == every:
        raise misuse("name ids, or pass --all with filters" + (", not both" if every else ""))
    if every:
        return wanted_jobs(**filters)
    if any(value is not None for value in filters.values()):
        raise misuse("filters need --all and cannot be combined with ids")
    return whole_ids(context, ids, states)
