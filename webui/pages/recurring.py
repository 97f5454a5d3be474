"""The page of recurring jobs with a form to add one, and the page of each: its times, past runs and actions."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any
from zoneinfo import ZoneInfo

from fastapi import Depends, Form
from msgspec import Struct
from msgspec.structs import asdict, replace
from pydantic import BaseModel, ConfigDict, Field, create_model
from starlette.requests import Request
from starlette.responses import Response

from palermo.contract import clock
from palermo.contract.recurring import MISSED, SCHEDULED, SHORTEST, RecurringJob
from palermo.contract.row_types import RecurringRow
from palermo.contract.rows import Row, iso_instant
from palermo.core.arguments import preview
from palermo.core.text import count, exactly
from palermo.core.times import parse_duration
from palermo.core.topology import check_new_queue
from palermo.errors import NotFound
from palermo.history.entry import Entry
from palermo.history.recurring_runs import RUN_ID, PastRun
from palermo.jobs.definition import check_job_name
from palermo.jobs.options import RECURRING_OPTIONS
from palermo.jobs.redaction import unmasked
from palermo.views.filter import JobFilter
from palermo.webui import actions, tuning
from palermo.webui.api.rows import Enqueued, Id, Removed, Rows
from palermo.webui.pages.forms import (
    FORM_ERRORS,
    NO_PROBLEMS,
    Problems,
    ShownForm,
    is_time_zone,
    problems_of,
    read_arguments,
)
from palermo.webui.pages.job import option_fields
from palermo.webui.render.charts import Spark, spark
from palermo.webui.render.formats import element_key, moment
from palermo.webui.render.rendering import page, path, redirect
from palermo.webui.site import Refused, Visit, Visiting
from palermo.webui.state import listings
from palermo.webui.state.journal_views import journal_views
from palermo.webui.state.live_state import live_state, running_jobs
from palermo.webui.threads import Router

router = Router()


Text = Annotated[str, Form(max_length=1_000)]
Long = Annotated[str, Form(max_length=100_000)]


class RecurringForm(Struct, frozen=True, kw_only=True):
    """The form of a recurring job, as typed. Name and job exist only in the form that adds one."""

    name: str = ""
    job: str = ""
    cron: str = ""
    every: str = ""
    tz: str = "UTC"
    queue: str = ""
    missed: str = "once"
    args: str = "[]"
    kwargs: str = "{}"

    @classmethod
    def of(cls, row: Row) -> "RecurringForm":
        """Return the form that changes this recurring job."""
        return cls(
            cron=row["cron"] or "",
            every="" if row["every"] is None else str(row["every"]).removesuffix(".0"),
            tz=row["tz"],
            queue=row["queue"],
            missed=row["missed"],
            args=json.dumps(row["args"], ensure_ascii=False),
            kwargs=json.dumps(row["kwargs"], ensure_ascii=False),
        )

    def options(self, *, adds: bool = False) -> dict[str, Any]:
        """Return the fields as options of inspector.recurring.put, with name and job if it `adds` one. Raises
        FormInvalid.
        """
        problems = Problems()
        if adds:
            with problems.at("name"):
                RecurringJob(name=self.name, job="any", every=SHORTEST)
            with problems.at("job"):
                check_job_name(self.job)
        every = None
        if bool(self.cron) == bool(self.every):
            problems["cron"] = "a recurring job needs either a cron expression or an interval."
        elif self.cron:
            with problems.at("cron" if is_time_zone(self.tz) else "tz"):
                RecurringJob(name="any", job="any", cron=self.cron, tz=self.tz)
        else:
            with problems.at("every"):
                every = _seconds(self.every)
                RecurringJob(name="any", job="any", every=every)
        with problems.at("missed"):
            RecurringJob(name="any", job="any", every=SHORTEST, missed=self.missed)
        if self.queue:
            with problems.at("queue"):
                check_new_queue(self.queue)
        args, kwargs = read_arguments(problems, self.args, self.kwargs)
        problems.check()
        return {
            "cron": self.cron or None,
            "every": every,
            "tz": self.tz,
            "queue": self.queue or None,
            "missed": self.missed,
            "args": args or [],
            "kwargs": kwargs or {},
        }


def recurring_form(
    called: Annotated[str, Form(max_length=1_000, alias="name")] = "",
    job: Text = "",
    cron: Text = "",
    every: Text = "",
    tz: Text = "UTC",
    queue: Text = "",
    missed: Text = "once",
    args: Long = "[]",
    kwargs: Long = "{}",
) -> RecurringForm:
    """Read the form from a request."""
    times = {"cron": cron, "every": every, "tz": tz or "UTC", "missed": missed}
    given = {"name": called, "job": job, "queue": queue, **times}
    return RecurringForm(**{key: text.strip() for key, text in given.items()}, args=args, kwargs=kwargs)


Filled = Annotated[RecurringForm, Depends(recurring_form)]


@router.get("/recurring", name="recurring")
def recurring(request: Request, visit: Visiting) -> Response:
    """Show all recurring jobs, by name."""
    return _page(request, visit, RecurringForm())


@router.post("/recurring/add", name="add_recurring")
def add(request: Request, visit: Visiting, form: Filled) -> Response:
    """Add a recurring job. Errors are shown at the fields."""
    try:
        actions.put_recurring(visit, form.name, form.job, **form.options(adds=True))
    except FORM_ERRORS as error:
        return _page(request, visit, form, problems_of(error, conflict="name"))
    return redirect(request, path(request, "recurring"), f"Added {form.name}.")


@router.post("/recurring/{name:palermo}/run", name="run_recurring")
def run(request: Request, visit: Visiting, name: str, own: Text = "") -> Response:
    """Enqueue the recurring job now. `own` is set by the form on the job's own page."""
    id = actions.run_recurring(visit, name)
    return redirect(request, _back(request, name, own), f"Enqueued {name} as job {id}.")


@router.post("/recurring/{name:palermo}/enable", name="enable_recurring")
def enable(request: Request, visit: Visiting, name: str, own: Text = "") -> Response:
    actions.switch_recurring(visit, name, on=True)
    return redirect(request, _back(request, name, own), f"Enabled {name}.")


@router.post("/recurring/{name:palermo}/disable", name="disable_recurring")
def disable(request: Request, visit: Visiting, name: str, own: Text = "") -> Response:
    actions.switch_recurring(visit, name, on=False)
    return redirect(
        request,
        _back(request, name, own),
        f"Disabled {name} until it is enabled again.",
    )


@router.post("/recurring/{name:palermo}/remove", name="remove_recurring")
def remove(request: Request, visit: Visiting, name: str) -> Response:
    actions.remove_recurring(visit, name)
    return redirect(request, path(request, "recurring"), f"Removed {name}.")


def _back(request: Request, name: str, own: str) -> str:
    """Return the page of the form: the job's own page, or the list."""
    return path(request, "recurring_job", name=name) if own else path(request, "recurring")


# -- one recurring job


@router.get("/recurring/{name:palermo}", name="recurring_job")
def recurring_job(request: Request, visit: Visiting, name: str) -> Response:
    """Show one recurring job with its next times, past runs and actions."""
    return _own_page(request, visit, listings.recurring_row(listings.recurring(visit), name))


@router.post("/recurring/{name:palermo}/edit", name="edit_recurring")
def edit(request: Request, visit: Visiting, name: str, form: Filled) -> Response:
    """Change its times, queue and arguments, but not its job. Errors are shown at the fields.

    If it was removed in the meantime, the form that adds one contains the input.
    """
    try:
        row = listings.recurring_row(listings.recurring(visit), name)
    except NotFound as error:
        return _page(request, visit, replace(form, name=name), problems_of(error))
    try:
        options = form.options()
        options |= _whole(visit, name, options["args"], options["kwargs"])
        actions.put_recurring(visit, name, row["job"], replace=True, **options)
    except FORM_ERRORS as error:
        return _own_page(request, visit, row, "edit", form, problems_of(error))
    return redirect(request, path(request, "recurring_job", name=name), f"Saved {name}.")


@router.post("/recurring/{name:palermo}/run-with", name="run_recurring_with")
def run_with(request: Request, visit: Visiting, name: str, form: Filled) -> Response:
    """Enqueue its job once with the form's arguments, in the same queue."""
    row = listings.recurring_row(listings.recurring(visit), name)
    problems = Problems()
    try:
        args, kwargs = read_arguments(problems, form.args, form.kwargs)
        problems.check()
        whole = _whole(visit, name, args or [], kwargs or {})
        made = actions.enqueue(visit, row["job"], whole["args"], whole["kwargs"], queue=row["queue"])
    except FORM_ERRORS as error:
        return _own_page(request, visit, row, "run-with", form, problems_of(error))
    return redirect(request, path(request, "recurring_job", name=name), f"Enqueued {row['job']} as job {made.id}.")


def _own_page(
    request: Request,
    visit: Visit,
    row: Row,
    asked: str = "",
    typed: RecurringForm | None = None,
    problems: Mapping[str, str] = NO_PROBLEMS,
) -> Response:
    """Show one recurring job. After a refused form, its dialog is open with the input and the errors."""
    failing: dict[str, Any] = {"asked": asked} if asked else {}
    forms = {each: ShownForm(each, asdict(RecurringForm.of(row))) for each in ("edit", "run-with")}
    if typed is not None:
        forms[asked] = ShownForm(asked, asdict(typed), problems)
    known = journal_views(visit.site)
    state = known.wait_until_read()
    snapshot = live_state(visit.site).snapshot()
    name = row["name"]
    # The ids of its runs begin with its name.
    wanted = JobFilter(job=exactly(row["job"]), text=f"{name}@")
    found = known.index.page(wanted, limit=tuning.ROWS) if state.ready else []
    runs = [_run(entry) for entry in found if entry.id.startswith(f"{name}@")]
    return page(
        request,
        "recurring_job.html",
        status=422 if problems else 200,
        row=_shown(row),
        names={each["name"] for each in snapshot.queues},
        upcoming=_upcoming(row),
        running=[job for job in running_jobs(snapshot) if job["id"].startswith(f"{name}@")],
        runs=runs,
        spark=_spark([PastRun(run["state"], run["took"] or 0.0) for run in reversed(runs)]),
        state=state,
        off=known.off,
        forms=forms,
        missed=MISSED,
        watched={"of": "history"},
        here=path(request, "recurring_job", name=name),
        **failing,
    )


def _whole(visit: Visit, name: str, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a form's arguments, with masks replaced by the recurring job's values."""
    bare = listings.recurring_row(visit.inspector.recurring.list(), name)
    return {"args": unmasked(args, bare["args"] or []), "kwargs": unmasked(kwargs, bare["kwargs"] or {})}


def _upcoming(row: Row) -> list[tuple[str | None, str]]:
    """Return the next times of a recurring job, each with a text in its own time zone."""
    times = RecurringJob(name="next", job=row["job"], cron=row["cron"] or "", every=row["every"], tz=row["tz"])
    zone = ZoneInfo(row["tz"]) if row["cron"] else UTC
    return [
        (iso_instant(tick), f"{datetime.fromtimestamp(tick, zone):%a %Y-%m-%d %H:%M:%S %Z}")
        for tick in islice(times.ticks(clock.now()), tuning.SOME // 2)
    ]


def _run(entry: Entry) -> Row:
    """Return an ended run with its due time and the delay of its start in seconds."""
    row = entry.row()
    found = RUN_ID.fullmatch(entry.id)
    due = moment(found["due"]) if found and not found["by_hand"] else None
    late = None
    if due is not None and entry.attempt in (None, 1):
        late = max(0.0, entry.at - (entry.took or 0.0) - due.timestamp())
    return {**row, "due": found["due"] if found and due else None, "late": late}


def _spark(runs: Sequence[PastRun]) -> Spark:
    """Return a chart of the runs' durations, oldest first, with failed runs in another colour."""
    times = [max(1, round(run.took * 1_000)) for run in runs]
    bad = [run.state == "failed" for run in runs]
    drawn = spark([(0, ms) if failed else (ms, 0) for ms, failed in zip(times, bad, strict=True)])
    return replace(
        drawn, text=f"{count(len(runs), 'run')}, {sum(bad):,} failed; the height of a bar is the duration of a run"
    )


# -- the forms


def _page(request: Request, visit: Visit, form: RecurringForm, problems: Mapping[str, str] = NO_PROBLEMS) -> Response:
    failing: dict[str, Any] = {"asked": "add"} if problems else {}
    known = journal_views(visit.site)
    rows = [_shown(row) for row in listings.recurring(visit)]
    return page(
        request,
        "recurring.html",
        status=422 if problems else 200,
        rows=rows,
        sparks={row["name"]: _spark(known.recurring_runs.of(row["name"])) for row in rows},
        reading=not known.off and not known.ready,
        level=known.level.value,
        names={row["name"] for row in live_state(visit.site).snapshot(5.0).queues},
        form=ShownForm("add", asdict(form), problems),
        missed=MISSED,
        watched={"of": "recurring"},
        here=path(request, "recurring"),
        **failing,
    )


def _shown(row: Row) -> Row:
    """Return the row with its arguments in one line, and a key for the ids of page elements."""
    return {
        **row,
        "key": element_key(row["name"]),
        "preview": None if row["args"] is None else preview(row["args"], row["kwargs"]),
    }


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError:
        raise Refused(422, f"{text[:40]!r} is not a duration. Write 30, 5m or 1h30m.") from None


# -- the API

api = Router(prefix="/recurring", tags=["recurring"])


if TYPE_CHECKING:
    _Times = BaseModel
else:
    _Times = create_model("_Times", **option_fields(name for name in RECURRING_OPTIONS if name in SCHEDULED))


class NewRecurring(_Times):
    """A recurring job to add. Set either cron or every."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=200, description="Its own.")
    job: str = Field(min_length=1, max_length=255, description="The job's wire name, such as shop.tasks.sweep.")
    args: list[Any] = Field(default_factory=list)
    kwargs: dict[str, Any] = Field(default_factory=dict)
    queue: str | None = Field(default=None, description="By default the job's own, or the default queue.")
    replace: bool = Field(default=False, description="Whether to replace one with this name; otherwise 409.")


@api.get("")
def api_recurring(visit: Visiting) -> Rows[RecurringRow]:
    """All recurring jobs, by name."""
    return Rows[RecurringRow].whole(listings.recurring(visit))


@api.post("", status_code=201)
def api_put_recurring(visit: Visiting, new: NewRecurring) -> RecurringRow:
    """Add a recurring job. Role: operator.

    If the replaced job was disabled, so is the new one. If code or configuration declares the same name, that
    declaration replaces it when a worker with it starts.
    """
    actions.put_recurring(visit, **new.model_dump())
    return _row(visit, new.name)


@api.get("/{name:palermo}")
def api_recurring_job(visit: Visiting, name: Id) -> RecurringRow:
    """One recurring job."""
    return _row(visit, name)


@api.post("/{name:palermo}/run")
def api_run_recurring(visit: Visiting, name: Id) -> Enqueued:
    """Enqueue a recurring job now, even if it is disabled. Its schedule doesn't change. Role: operator."""
    row = _row(visit, name)
    return Enqueued(id=actions.run_recurring(visit, name), job=row["job"], queue=row["queue"])


@api.post("/{name:palermo}/enable")
def api_enable_recurring(visit: Visiting, name: Id) -> RecurringRow:
    """Enable a recurring job, so that it runs on schedule again. Role: operator."""
    actions.switch_recurring(visit, name, on=True)
    return _row(visit, name)


@api.post("/{name:palermo}/disable")
def api_disable_recurring(visit: Visiting, name: Id) -> RecurringRow:
    """Disable a recurring job until it is enabled again, even after restarts. Role: operator."""
    actions.switch_recurring(visit, name, on=False)
    return _row(visit, name)


@api.delete("/{name:palermo}")
def api_remove_recurring(visit: Visiting, name: Id) -> Removed:
    """Remove a recurring job. If code or configuration declares it, it is added again when a worker with it starts.
    Role: operator.
    """
    actions.remove_recurring(visit, name)
    return Removed(removed=1)


def _row(visit: Visit, name: str) -> RecurringRow:
    return listings.recurring_row(listings.recurring(visit), name)
