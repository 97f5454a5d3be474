"""The form that changes a job's arguments, queue, priority and time: to requeue it, to edit it or to run it again."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import Form
from starlette.requests import Request
from starlette.responses import Response

from palermo.contract.rows import Row
from palermo.core import times
from palermo.core.times import parse_duration
from palermo.core.topology import MAX_PRIORITY
from palermo.errors import OptionInvalid
from palermo.inspector.masking import unmasked
from palermo.jobs.redaction import MASK
from palermo.webui.render.rendering import page
from palermo.webui.site import Refused

Text = Annotated[str, Form()]
Short = Annotated[str, Form(max_length=500)]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobForm:
    """What the form holds, as it was typed."""

    args: str = ""
    kwargs: str = ""
    queue: str = ""
    priority: str = ""
    when: str = ""

    @classmethod
    def of(cls, row: Row) -> "JobForm":
        """The form of a job, before anything is changed."""
        return cls(args=_written(row["args"]), kwargs=_written(row["kwargs"]))

    def changes(self, row: Row, bare: Row, *, whole: bool = False) -> dict[str, Any]:
        """The changes that the form asks for: `args`, `kwargs`, `queue`, `priority` and `at`, None for no change.

        `row` is the job's masked row, and `bare` the unmasked one: a mask that was left means the value behind it. With
        `whole` arguments that were not changed count as given. Raises Refused (422), OptionInvalid.
        """
        found: dict[str, Any] = {}
        for name, which, kind in (("args", "positional", list), ("kwargs", "named", dict)):
            value = _read(which, getattr(self, name), kind)
            if value is not None and not whole and value == row[name]:
                value = None
            found[name] = None if value is None else unmasked(value, bare[name])
            if whole and _holds_mask(found[name]):
                raise Refused(422, f"the {which} arguments still hold {MASK}: write the hidden values in their places.")
        found["queue"] = self.queue.strip() or None
        found["priority"] = _priority(self.priority)
        found["at"] = later_of(self.when) if self.when.strip() else None
        return found


def job_form(args: Text = "", kwargs: Text = "", queue: Short = "", priority: Short = "", when: Short = "") -> JobForm:
    """The form of a request."""
    return JobForm(args=args, kwargs=kwargs, queue=queue, priority=priority, when=when)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormPage:
    """The page of the form for one purpose."""

    #: Its heading, before the job's name; the text of its button; what is said above the fields.
    title: str
    button: str
    note: str = ""
    #: The entry of the navigation that it belongs to, its route and its title.
    section: str
    crumb: str
    #: Where the form is sent, and where its cancel button leads.
    action: str
    back: str
    #: What happens if no time is given.
    time_hint: str

    def show(self, request: Request, row: Row, form: JobForm, problem: str = "") -> Response:
        """The page; with a problem it is refused (422)."""
        return page(
            request,
            "job_form.html",
            status=422 if problem else 200,
            form=self,
            row=row,
            fields=form,
            readable=row["args"] is not None,
            problem=problem,
            highest=MAX_PRIORITY,
        )


def problem_of(error: Exception) -> str:
    """The text of an error that a form shows above its fields. Raises the error if it is of another kind."""
    if isinstance(error, Refused):
        if error.status_code != 422:
            raise error
        return str(error.detail)
    return str(error)


def later_of(text: str) -> float:
    """Unix seconds of a form's text: a duration from now, or an instant with its zone.

    Raises Refused (422), OptionInvalid.
    """
    text = text.strip()
    try:
        return times.unix_seconds(time.time() + parse_duration(text))
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Refused(422, f"{text[:40]!r} is no time: write 5m or 2d from now, or 2026-12-01T09:00Z.") from None
    if moment.tzinfo is None:
        raise Refused(422, f"{text[:40]!r} has no time zone: write {text[:40]}Z or {text[:40]}+01:00.")
    return times.unix_seconds(moment)


def delay_of(text: str) -> float:
    """Seconds of a form's text such as +1h: so much later than a job is due now. Raises Refused (422)."""
    try:
        return parse_duration(text.strip().removeprefix("+"))
    except ValueError:
        raise Refused(422, f"{text[:40]!r} is no delay such as +1h, +90m or +2d.") from None


def _priority(text: str) -> int | None:
    text = text.strip()
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or int(text) > MAX_PRIORITY:
        raise OptionInvalid(f"priority is {text[:20]!r}; give a number from 0 to {MAX_PRIORITY}.")
    return int(text)


def _written(value: object) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False, indent=2)


def _read(which: str, text: str, kind: type) -> Any:
    if not text.strip():
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(422, f"the {which} arguments are not JSON: {error}.") from None
    if not isinstance(value, kind):
        shape = "a list, such as [1, true]" if kind is list else 'an object, such as {"width": 640}'
        raise Refused(422, f"the {which} arguments must be {shape}.")
    return value


def _holds_mask(value: object) -> bool:
    match value:
        case str():
            return value == MASK
        case Mapping():
            return any(map(_holds_mask, value.values()))
        case list() | tuple():
            return any(map(_holds_mask, value))
    return False
