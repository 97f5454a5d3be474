"""The form that changes a job's arguments, queue, priority and time, to requeue, edit or rerun it."""

import json
from typing import Annotated, Any

from fastapi import Depends, Form
from msgspec import Struct, field
from starlette.requests import Request
from starlette.responses import Response

from palermo.contract.rows import Row
from palermo.core.topology import MAX_PRIORITY, check_new_queue
from palermo.errors import NotFound
from palermo.jobs.redaction import unmasked
from palermo.webui.pages.forms import Problems, ShownForm, TimeFields, problems_of, read_arguments, read_priority
from palermo.webui.render.rendering import page

Text = Annotated[str, Form()]
Short = Annotated[str, Form(max_length=500)]


def time_fields(when: Short = "", on: Short = "", zone: Short = "UTC") -> TimeFields:
    """Read the fields for a time from a request."""
    return TimeFields(when=when, on=on, zone=zone)


#: For handlers of forms with a time.
Time = Annotated[TimeFields, Depends(time_fields)]


class JobForm(Struct, frozen=True, kw_only=True):
    """The form's fields, as typed."""

    args: str = ""
    kwargs: str = ""
    queue: str = ""
    #: The queue for which the form has already warned that no worker serves it.
    unserved: str = ""
    priority: str = ""
    time: TimeFields = field(default_factory=TimeFields)

    @classmethod
    def of(cls, row: Row) -> "JobForm":
        return cls(args=_written(row["args"]), kwargs=_written(row["kwargs"]))

    @property
    def values(self) -> dict[str, str]:
        """Return the text in each field, by name."""
        own = {
            "args": self.args,
            "kwargs": self.kwargs,
            "queue": self.queue,
            "unserved": self.unserved,
            "priority": self.priority,
        }
        return own | self.time.values

    def changes(self, row: Row, bare: Row, *, whole: bool = False) -> dict[str, Any]:
        """Return the changes in the form: `args`, `kwargs`, `queue`, `priority` and `at` (None for no change), and
        `unserved`.

        `unserved` confirms a queue that no worker serves. `row` is the job's masked row and `bare` the unmasked one,
        whose values replace remaining masks. With `whole`, unchanged arguments are included. Raises FormInvalid.
        """
        problems = Problems()
        found = self.read(problems)
        for name in ("args", "kwargs"):
            value = found[name]
            unchanged = value is None or (not whole and value == row[name])
            with problems.at(name):
                found[name] = None if unchanged else unmasked(value, bare[name])
        problems.check()
        return found | {"unserved": self.unserved == found["queue"]}

    def read(self, problems: Problems) -> dict[str, Any]:
        """Return the values of `args`, `kwargs`, `queue`, `priority` and `at`; None for an empty field."""
        found: dict[str, Any] = {"priority": None}
        found["args"], found["kwargs"] = read_arguments(problems, self.args, self.kwargs)
        found["queue"] = self.queue.strip() or None
        if found["queue"]:
            with problems.at("queue"):
                check_new_queue(found["queue"])
        with problems.at("priority"):
            found["priority"] = read_priority(self.priority)
        found["at"] = self.time.read(problems)
        return found


def job_form(
    time: Time, args: Text = "", kwargs: Text = "", queue: Short = "", unserved: Short = "", priority: Short = ""
) -> JobForm:
    """Read the form from a request."""
    return JobForm(args=args, kwargs=kwargs, queue=queue, unserved=unserved, priority=priority, time=time)


def missing_row(id: str, queue: str = "") -> Row:
    """Return a row for a job that no longer exists, for a form that was sent about it."""
    unknown: Row = dict.fromkeys(("job", "preview", "content_type", "priority", "error", "kwargs"))
    return {**unknown, "id": id, "queue": queue, "state": "", "args": []}


class FormPage(Struct, frozen=True, kw_only=True):
    #: Its heading before the job's name, its button's text, and the text above the fields.
    title: str
    button: str
    note: str = ""
    #: The route and title of the navigation entry to which it belongs.
    section: str
    crumb: str
    #: Where the form is sent, and where the cancel button leads.
    action: str
    back: str
    #: The effect if no time is given.
    time_hint: str

    def show(self, request: Request, row: Row, form: JobForm, error: Exception | None = None) -> Response:
        """Return the page with the form. After an error, its status is 422, or 404 if the job no longer exists.

        Raises the error if it isn't about the input.
        """
        return page(
            request,
            "job_form.html",
            status=200 if error is None else 404 if isinstance(error, NotFound) else 422,
            purpose=self,
            row=row,
            form=ShownForm("edit", form.values, {} if error is None else problems_of(error)),
            readable=row["args"] is not None,
            highest=MAX_PRIORITY,
        )


def _written(value: object) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False, indent=2)
