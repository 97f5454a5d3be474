"""The filter of jobs in any state, and that of operators' actions: their text, and the rule for a job.

Law: lists, commands, the API and the pages filter jobs by a JobFilter and by nothing else, so that one text finds the
same jobs everywhere. An index asks the filter about names, and compares times and searches texts as `matches` does.
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

#: The states of jobs, in the order of their lives.
STATES = ("running", "waiting", "scheduled", "retrying", "failed", "done", "discarded", "cancelled")

#: The states of rows that have another name in filters.
ROW_STATES = {"pending": "waiting", "working": "running"}

#: The fields that hold names.
NAMES = ("queue", "job", "error", "worker", "tenant")

#: The fields that hold times, which are given as durations ago; those given as durations from now; and durations.
_TIMES, _DUE, _DURATIONS = ("since", "until"), ("due_from", "due_until"), ("longer", "shorter")

#: The conditions on jobs, each with an example and with its meaning, for people.
CHIPS: Mapping[str, tuple[str, str]] = {
    "queue": ("mail", "part of the queue's name; =mail matches only mail"),
    "job": ("SendReceipt", "part of the job's name; * matches any characters"),
    "error": ("Timeout", "part of the error's class name"),
    "worker": ("@web-1", "part of the worker's id; @web-1 matches all workers of that machine"),
    "tenant": ("acme", "part of the tenant's name"),
    "state": ("failed", f"{', '.join(STATES[:-1])} or {STATES[-1]}; several with a comma"),
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

#: The conditions on the actions of operators.
ACTION_CHIPS: Mapping[str, tuple[str, str]] = {
    "by": ("anna", "part of the user's name"),
    "action": ("requeue", "part of the action's name"),
    "queue": CHIPS["queue"],
    "since": ("15m", "done at this time or later: 2h (ago) or 2026-12-01T09:00Z"),
    "until": CHIPS["until"],
}

#: A chip, text in quotes, or text without a blank. In quotes a quote and a backslash have a backslash before them.
_WORD = re.compile(r'(?:(?P<name>[a-z]+|due_from|due_until):)?(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>\S+))')

#: The limit for instants. A job of another program may say anything about when it failed, within 64 bits.
_LAST = 2.0**62


class Facts(Struct, frozen=True, kw_only=True):
    """What a filter compares of one job."""

    id: str = ""
    #: One of STATES.
    state: str = ""
    queue: str = ""
    job: str = ""
    error: str = ""
    worker: str = ""
    tenant: str = ""
    #: Unix seconds: when it failed, ended, started or else was enqueued; None if that is unknown.
    at: float | None = None
    #: Unix seconds at which a scheduled job is due.
    due: float | None = None
    #: Seconds that it ran.
    took: float | None = None
    requeued: bool = False
    #: Made if they are asked for: the fingerprint of its failure, and what a text is searched in beside its id.
    group: Callable[[], str] = str
    texts: Callable[[], Iterable[str | None]] = tuple


class _Conditions(Struct, frozen=True, kw_only=True):
    """The conditions of a filter. None is none."""

    def __post_init__(self) -> None:
        check_conditions(self)

    @property
    def everything(self) -> bool:
        """Whether the filter has no condition."""
        return all(getattr(self, name) is None for name in self.__struct_fields__)

    def __str__(self) -> str:
        """The text that `parse_filter` reads as this filter; "everything" for one without conditions."""
        return (
            " ".join(str(Chip("" if name == "text" else name, value)) for name, value in written(self)) or "everything"
        )


F = TypeVar("F", bound=_Conditions)


class AuditFilter(_Conditions, frozen=True, kw_only=True):
    """The conditions that an operator's action must meet, all at once; a filter without conditions matches every one.

    A name is matched as in a JobFilter. Raises OptionInvalid for a blank condition.
    """

    #: The user who did it.
    by: str | None = None
    action: str | None = None
    queue: str | None = None
    #: Text, in any letter case, in the ids of its jobs, or in its other fields.
    text: str | None = None
    #: Unix seconds: it was done then or later.
    since: float | None = None
    #: Unix seconds: it was done then or earlier.
    until: float | None = None


class JobFilter(_Conditions, frozen=True, kw_only=True):
    """The conditions that a job must meet, all at once; a filter without conditions matches every job.

    A name is a part of the name, in any letter case. `*` in it stands for any characters, `a,b` accepts either part,
    and `=mail` is exactly `mail`. A job whose value is unknown in a list does not meet a condition on it.

    Raises OptionInvalid for a blank condition and for an unknown state.
    """

    #: One or more of running, waiting, scheduled, retrying, failed, done, discarded and cancelled, with commas.
    state: str | None = None
    queue: str | None = None
    #: Its wire name.
    job: str | None = None
    #: The dotted name of the class of its error.
    error: str | None = None
    #: The id of the worker that ran it last, such as `pid:123@host`.
    worker: str | None = None
    tenant: str | None = None
    #: Text, in any letter case, at the beginning of its id, or in its name, its error, its traceback, the reason why it
    #: was discarded, or its arguments as they are shown. What the setting web_redact hides is not searched.
    text: str | None = None
    #: Whole Unix seconds: it failed, ended, started or was enqueued then or later.
    since: float | None = None
    #: Whole Unix seconds: it failed, ended, started or was enqueued then or earlier.
    until: float | None = None
    #: Unix seconds: it is due then or later.
    due_from: float | None = None
    #: Unix seconds: it is due then or earlier.
    due_until: float | None = None
    #: The fingerprint of its group, as `inspector.failed.groups` returns it.
    group: str | None = None
    #: True for jobs that failed again after a requeue; False for the others.
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
        """The states that are asked for; none for all."""
        return tuple(self.state.split(",")) if self.state else ()

    @property
    def first(self) -> int | None:
        """`since` in the whole seconds in which failed jobs say when they failed."""
        return None if self.since is None else int(self.since)

    def fits_name(self, field: str, name: str) -> bool:
        """Whether the value of one of NAMES meets the filter's condition on it."""
        wanted: str | None = getattr(self, field)
        if wanted is None:
            return True
        # The slot of a worker may be given, as the page of a job shows it: its worker is meant.
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
            and (self.text is None or _says(job, self.text.casefold()))
        )


#: The filters that every job meets, and every action.
EVERYTHING, ANYTHING = JobFilter(), AuditFilter()


def _says(job: Facts, wanted: str) -> bool:
    return job.id.casefold().startswith(wanted) or any(wanted in text.casefold() for text in job.texts() if text)


def written(filter: _Conditions) -> list[tuple[str, str]]:
    """The conditions of a filter by their names, as `filter_of` reads them; the text comes last."""
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
    """A condition as it is written: `queue:mail`, or text that has no name."""

    name: str
    value: str

    def __str__(self) -> str:
        plain = self.value and not re.search(r'[\s"]', self.value) and (self.name or ":" not in self.value)
        value = self.value if plain else '"' + re.sub(r'(["\\])', r"\\\1", self.value) + '"'
        return f"{self.name}:{value}" if self.name else value


def chips_of(kind: type[_Conditions]) -> Mapping[str, tuple[str, str]]:
    """The conditions that a filter of this kind may have, each with an example and with its meaning."""
    return ACTION_CHIPS if kind is AuditFilter else CHIPS


def chips(text: str, kind: type[_Conditions] = JobFilter) -> list[Chip]:
    """The conditions in a text, such as `state:failed queue:mail "no answer"`; all words are one text, and come last.

    Raises OptionInvalid for a condition that is unknown, twice there or without a value.
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
        elif name == "pid" or value.startswith("//"):  # a worker's id; https://…
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
    said = " ".join(filter(None, words))
    return [*found.values(), *([Chip("", said)] if said else [])]


def parse_filter(text: str, now: float) -> JobFilter:
    """The filter that a text means; its durations end at `now`, in Unix seconds. Raises OptionInvalid."""
    return filter_of({chip.name or "text": chip.value for chip in chips(text)}, now)


def filter_of(written: Mapping[str, str | None], now: float, kind: type[F] = JobFilter) -> F:  # type: ignore[assignment]
    """The filter with these conditions, each as it is written; `filter` is a text with more of them, and None is none.

    Raises OptionInvalid, also for a blank filter and for a condition that is given twice.
    """
    more = written.get("filter")
    check_condition("filter", more)
    given = {name: value for name, value in written.items() if name != "filter" and value is not None}
    for chip in chips(more or "", kind):
        if (name := chip.name or "text") in given:
            raise OptionInvalid(f"{name} is given twice: as {given[name][:40]!r} and in the filter {more!r}.")
        given[name] = chip.value
    values: dict[str, str | float | bool] = {}
    for name, value in given.items():
        if name in (*_TIMES, *_DUE):
            values[name] = parse_moment(value, name, now)
        elif name in _DURATIONS:
            values[name] = _seconds(value, name)
        elif name == "requeued":
            if value not in ("true", "false"):
                raise OptionInvalid(f"{name} is {value[:40]!r}: write true or false.")
            values[name] = value == "true"
        elif name == "state":
            values[name] = ",".join(ROW_STATES.get(state.strip(), state.strip()) for state in value.split(","))
        else:
            values[name] = value
    return kind(**values)


def parse_moment(text: str, name: str, now: float) -> float:
    """Unix seconds of a text: an instant with a zone, `@` and Unix seconds, or a duration. Raises OptionInvalid.

    A duration is from now for the instant at which a job is due, and ago for other instants.
    """
    ago = name not in _DUE
    try:
        # An unquoted plus sign in an address arrives as a blank.
        plus = text.replace(" ", "+") if text.count(" ") == 1 else text
        moment = float(text[1:]) if text.startswith("@") else parse_time(plus, now, ago=ago)
    except (ValueError, OverflowError):
        raise OptionInvalid(
            f"{name} is {text[:40]!r}; write a duration {'ago' if ago else 'from now'}, such as 90s, 5m or 2d, or a"
            " time such as 2026-12-01T09:00Z."
        ) from None
    if not -_LAST < moment < _LAST:
        raise OptionInvalid(f"{name} is {text[:40]!r}, which is out of range.")
    return moment


def _seconds(text: str, name: str) -> float:
    try:
        return parse_duration(text)
    except ValueError:
        raise OptionInvalid(f"{name} is {text[:40]!r}; write a duration such as 0.5s, 90s, 5m or 1h30m.") from None
