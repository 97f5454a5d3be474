"""The filters for jobs in any state and for operators' actions: their text form, and how they match.

Law: lists, commands, the API and the pages filter jobs only with a JobFilter, so that the same text finds the same jobs
everywhere. An index calls the filter for names, and compares times and searches texts in the same way as `matches`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from msgspec import Struct

from palermo.contract.rows import iso_instant
from palermo.core.conditions import check_condition, check_conditions
from palermo.core.failure import printable
from palermo.core.text import fits, nearest
from palermo.core.times import parse_duration, parse_time
from palermo.core.topology import worker_of
from palermo.errors import OptionInvalid

#: The states of jobs, in the order of a job's life.
STATES = ("running", "waiting", "scheduled", "retrying", "failed", "done", "discarded", "cancelled")

#: Row states with another name in filters.
ROW_STATES = {"pending": "waiting", "working": "running"}

#: The fields that hold names.
NAMES = ("queue", "job", "error", "worker", "tenant")

#: The fields with times, given as durations before now; with due times, given as durations from now; and with
#: durations.
_TIMES, _DUE, DURATIONS = ("since", "until"), ("due_from", "due_until"), ("longer", "shorter")

#: The conditions on jobs, with examples and meanings for users.
CHIPS: Mapping[str, tuple[str, str]] = {
    "queue": ("mail", "part of the queue's name; =mail matches only mail"),
    "job": ("SendReceipt", "part of the job's name; * matches any characters"),
    "error": ("Timeout", "part of the error's class name"),
    "worker": ("@web-1", "part of the worker's id; @web-1 matches all workers of that machine"),
    "tenant": ("acme", "part of the tenant's name"),
    "state": ("failed", f"{', '.join(STATES[:-1])} or {STATES[-1]}; separate several with commas"),
    "since": (
        "15m",
        "failed, ended, started or enqueued at this time or later: 2h (ago) or 2026-12-01T09:00Z",
    ),
    "until": ("1h", "failed, ended, started or enqueued at this time or earlier: 2h (ago) or 2026-12-01T09:00Z"),
    "due_from": ("2h", "due at this time or later: 2h (from now) or 2026-12-01T09:00Z"),
    "due_until": ("1d", "due at this time or earlier: 2h (from now) or 2026-12-01T09:00Z"),
    "longer": ("10s", "minimum run time"),
    "shorter": ("1s", "maximum run time"),
    "group": ("6f62ab01c9de", "fingerprint of a group of failed jobs"),
    "requeued": ("true", "failed again after a requeue"),
}

#: The conditions on operators' actions.
ACTION_CHIPS: Mapping[str, tuple[str, str]] = {
    "by": ("anna", "part of the user's name"),
    "action": ("requeue", "part of the action's name"),
    "queue": CHIPS["queue"],
    "since": ("15m", "done at this time or later: 2h (ago) or 2026-12-01T09:00Z"),
    "until": CHIPS["until"],
}

#: A condition, text in quotes, or a word. Within quotes, quotes and backslashes are escaped with a backslash.
_WORD = re.compile(r'(?:(?P<name>[a-z]+|due_from|due_until):)?(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>\S+))')

#: Limit for instants, because other programs may set any 64-bit number as a failure time.
_LAST = 2.0**62


class Facts(Struct, frozen=True, kw_only=True):
    """The data of one job that a filter compares."""

    id: str = ""
    #: One of STATES.
    state: str = ""
    queue: str = ""
    job: str = ""
    error: str = ""
    worker: str = ""
    tenant: str = ""
    #: Unix seconds: when it failed, ended or started, or else was enqueued; None if unknown.
    at: float | None = None
    #: When a scheduled job is due, in Unix seconds.
    due: float | None = None
    #: Duration of its run in seconds.
    took: float | None = None
    requeued: bool = False
    #: Computed only if needed: the fingerprint of its failure, and the text to search in addition to its id.
    group: Callable[[], str] = str
    texts: Callable[[], Iterable[str | None]] = tuple


class _Conditions(Struct, frozen=True, kw_only=True):
    """The conditions of a filter. None means no condition."""

    def __post_init__(self) -> None:
        check_conditions(self)

    @property
    def everything(self) -> bool:
        return all(getattr(self, name) is None for name in self.__struct_fields__)

    def __str__(self) -> str:
        """Return the text from which `parse_filter` creates this filter, or "everything"."""
        return (
            " ".join(str(Chip("" if name == "text" else name, value)) for name, value in written(self)) or "everything"
        )


F = TypeVar("F", bound=_Conditions)


class AuditFilter(_Conditions, frozen=True, kw_only=True):
    """The conditions that an operator's action must all meet. Without conditions it matches every action.

    Names are matched as in a JobFilter. Raises OptionInvalid for a blank condition.
    """

    #: The user who performed it.
    by: str | None = None
    action: str | None = None
    queue: str | None = None
    #: Text in the ids of the action's jobs or in its other fields, ignoring case.
    text: str | None = None
    #: Unix seconds: performed at this time or later.
    since: float | None = None
    #: Unix seconds: performed at this time or earlier.
    until: float | None = None


class JobFilter(_Conditions, frozen=True, kw_only=True):
    """The conditions that a job must all meet. Without conditions it matches every job.

    A name condition is part of the name, ignoring case. `*` stands for any characters, `a,b` matches either part, and
    `=mail` matches exactly `mail`. A job that lacks the value doesn't match.

    Raises OptionInvalid for a blank condition or an unknown state.
    """

    #: One or more of running, waiting, scheduled, retrying, failed, done, discarded and cancelled, separated by commas.
    state: str | None = None
    queue: str | None = None
    #: The wire name.
    job: str | None = None
    #: The dotted name of its error's class.
    error: str | None = None
    #: The id of the worker that last ran it, such as `pid:123@host`.
    worker: str | None = None
    tenant: str | None = None
    #: Text, ignoring case, at the beginning of its id, or in its name, error, traceback, discard reason or displayed
    #: arguments. Values hidden by the `web_redact` setting are not searched.
    text: str | None = None
    #: Unix seconds (integer): it failed, ended, started or was enqueued at this time or later.
    since: float | None = None
    #: Unix seconds (integer): it failed, ended, started or was enqueued at this time or earlier.
    until: float | None = None
    #: Unix seconds: due at this time or later.
    due_from: float | None = None
    #: Unix seconds: due at this time or earlier.
    due_until: float | None = None
    #: The fingerprint of its failure group, as returned by `inspector.failed.groups`.
    group: str | None = None
    #: True for jobs that failed again after a requeue, False for all others.
    requeued: bool | None = None
    #: It ran for at least this many seconds.
    longer: float | None = None
    #: It ran for at most this many seconds.
    shorter: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for state in self.states:
            if state not in STATES:
                close = nearest(state, STATES)
                raise OptionInvalid(f"there is no state {state[:40]!r}.{close} The states are {', '.join(STATES)}.")

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(self.state.split(",")) if self.state else ()

    @property
    def first(self) -> int | None:
        """`since` in whole seconds, the precision of failure times."""
        return None if self.since is None else int(self.since)

    def fits_name(self, field: str, name: str) -> bool:
        """Whether the value of one of NAMES matches the filter's condition on it."""
        wanted: str | None = getattr(self, field)
        if wanted is None:
            return True
        # A slot's tag, as on a job's page, stands for its worker.
        return fits(worker_of(name), worker_of(wanted)) if field == "worker" else fits(name, wanted)

    def matches(self, job: Facts) -> bool:
        """Whether a job meets all conditions."""
        return (
            (not self.state or job.state in self.states)
            and all(self.fits_name(field, getattr(job, field)) for field in NAMES)
            and (self.first is None or (job.at is not None and job.at >= self.first))
            and (self.until is None or job.at is None or job.at <= self.until)
            and (self.due_from is None or (job.due is not None and job.due >= self.due_from))
            and (self.due_until is None or (job.due is not None and job.due <= self.due_until))
            and (self.longer is None or (job.took is not None and job.took >= self.longer))
            and (self.shorter is None or (job.took is not None and job.took <= self.shorter))
            and (self.requeued is None or self.requeued is job.requeued)
            and (self.group is None or job.group() == self.group)
            and (self.text is None or _contains_text(job, self.text.casefold()))
        )


#: The filters that match every job and every action.
EVERYTHING, ANYTHING = JobFilter(), AuditFilter()


def _contains_text(job: Facts, wanted: str) -> bool:
    return job.id.casefold().startswith(wanted) or any(wanted in text.casefold() for text in job.texts() if text)


def written(filter: _Conditions) -> list[tuple[str, str]]:
    """Return the filter's conditions by name, as accepted by `filter_of`. The text comes last."""
    names = (*chips_of(type(filter)), "text")
    return [(name, _written(name, value)) for name in names if (value := getattr(filter, name)) is not None]


def _written(name: str, value: str | float) -> str:
    if isinstance(value, str):
        return value
    if name in (*_TIMES, *_DUE):
        return iso_instant(value) or f"@{value!r}"
    return str(value).lower() if isinstance(value, bool) else f"{value:f}"


# -- the text of a filter


class Chip(NamedTuple):
    """A condition in text form: `queue:mail`, or text without a name."""

    name: str
    value: str

    def __str__(self) -> str:
        plain = self.value and not re.search(r'[\s"]', self.value) and (self.name or ":" not in self.value)
        value = self.value if plain else '"' + re.sub(r'(["\\])', r"\\\1", self.value) + '"'
        return f"{self.name}:{value}" if self.name else value


def chips_of(kind: type[_Conditions]) -> Mapping[str, tuple[str, str]]:
    """Return the possible conditions of a kind of filter, with examples and meanings."""
    return ACTION_CHIPS if kind is AuditFilter else CHIPS


def chips(text: str, kind: type[_Conditions] = JobFilter) -> list[Chip]:
    """Split a text such as `state:failed queue:mail "no answer"` into conditions. All plain words form one text, which
    comes last.

    Raises OptionInvalid for a condition that is unknown, repeated or has no value.
    """
    words: list[str] = []
    found: dict[str, Chip] = {}
    known = chips_of(kind)
    for word in _WORD.finditer(printable(text)):
        name, value = word["name"], word["bare"] or re.sub(r'\\(["\\])', r"\1", word["quoted"] or "")
        if name is None and word["bare"] and value.endswith(":") and value[:-1] in known:
            name, value = value[:-1], ""
        if name is None:
            words.append("" if value.isspace() else value)
        elif name == "pid" or value.startswith("//"):  # a worker's id, or https://…
            words.append(word[0])
        elif name not in known:
            raise OptionInvalid(
                f"there is no filter {name + ':'!r}.{nearest(name, known)} The filters are {', '.join(known)}."
                f' To search for the text itself, write it in quotes: "{word[0].replace(chr(34), "")}".'
            )
        elif not value.strip():
            raise OptionInvalid(f"{name}: has no value. Write {name}:{known[name][0]} without a space, for example.")
        elif name in found:
            raise OptionInvalid(f"{name}: is given twice. Write {name}:{found[name].value},{value} to match either.")
        else:
            found[name] = Chip(name, value.strip())
    text_chip = " ".join(filter(None, words))
    return [*found.values(), *([Chip("", text_chip)] if text_chip else [])]


def parse_filter(text: str, now: float) -> JobFilter:
    """Parse a filter. Durations end at `now`, in Unix seconds. Raises OptionInvalid."""
    return filter_of({chip.name or "text": chip.value for chip in chips(text)}, now)


def filter_of(written: Mapping[str, str | None], now: float, kind: type[F] = JobFilter) -> F:  # type: ignore[assignment]
    """Return the filter with these conditions in text form. `filter` is a text with more conditions; None means no
    condition.

    Raises OptionInvalid, also for a blank filter and for a repeated condition.
    """
    more = written.get("filter")
    check_condition("filter", more)
    given = {name: value for name, value in written.items() if name != "filter" and value is not None}
    for chip in chips(more or "", kind):
        if (name := chip.name or "text") in given:
            raise OptionInvalid(f'"{name}" is given twice: as {given[name][:40]!r} and in the filter {more!r}.')
        given[name] = chip.value
    values: dict[str, str | float | bool] = {}
    for name, value in given.items():
        if name in (*_TIMES, *_DUE):
            values[name] = parse_moment(value, name, now)
        elif name in DURATIONS:
            values[name] = _seconds(value, name)
        elif name == "requeued":
            if value not in ("true", "false"):
                raise OptionInvalid(f'"{name}" is {value[:40]!r}; write true or false.')
            values[name] = value == "true"
        elif name == "state":
            values[name] = ",".join(ROW_STATES.get(state.strip(), state.strip()) for state in value.split(","))
        else:
            values[name] = value
    return kind(**values)


def parse_moment(text: str, name: str, now: float) -> float:
    """Return an instant with a zone, `@` and Unix seconds, or a duration as Unix seconds. Raises OptionInvalid.

    A duration counts from now for due times, and before now for others.
    """
    ago = name not in _DUE
    try:
        # An unquoted plus sign in a URL arrives as a space.
        plus = text.replace(" ", "+") if text.count(" ") == 1 else text
        moment = float(text[1:]) if text.startswith("@") else parse_time(plus, now, ago=ago)
    except (ValueError, OverflowError):
        raise OptionInvalid(
            f'"{name}" is {text[:40]!r}; write a duration {"before" if ago else "from"} now, such as 90s, 5m or 2d, or'
            " a time such as 2026-12-01T09:00Z."
        ) from None
    if not -_LAST < moment < _LAST:
        raise OptionInvalid(f'"{name}" is {text[:40]!r}, which is out of range.')
    return moment


def _seconds(text: str, name: str) -> float:
    try:
        return parse_duration(text)
    except ValueError:
        raise OptionInvalid(f'"{name}" is {text[:40]!r}; write a duration such as 0.5s, 90s, 5m or 1h30m.') from None
