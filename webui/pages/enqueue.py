"""The page with the form to enqueue a job. Other pages have a smaller version of the form."""

from typing import Annotated

from fastapi import Depends, Form, Query
from starlette.requests import Request
from starlette.responses import Response

from palermo.client.prepare import plain_note
from palermo.core.topology import MAX_PRIORITY
from palermo.jobs.definition import check_job_name
from palermo.webui import actions
from palermo.webui.pages.forms import FORM_ERRORS, Problems, ShownForm, problems_of
from palermo.webui.pages.job_form import JobForm, job_form
from palermo.webui.render.rendering import page, path, redirect
from palermo.webui.site import Refused, Role, Visiting
from palermo.webui.state.live_state import live_state
from palermo.webui.threads import Router

router = Router()

Name = Annotated[str, Query(max_length=1_000)]


def blank_form(*, job: str = "", queue: str = "") -> ShownForm:
    return ShownForm("enqueue", {"job": job} | JobForm(args="[]", kwargs="{}", queue=queue).values)


@router.get("/enqueue", name="enqueue_form")
def form_page(request: Request, visit: Visiting, job: Name = "", queue: Name = "") -> Response:
    if not visit.may(Role.OPERATOR):
        raise Refused(403, "this requires the operator role, and pages that are not read-only.")
    return _show(request, blank_form(job=job, queue=queue))


@router.post("/enqueue", name="enqueue")
def enqueue(
    request: Request, visit: Visiting, job: Annotated[str, Form()], form: Annotated[JobForm, Depends(job_form)]
) -> Response:
    """Enqueue a job from the form. Errors are shown at the fields."""
    name = job.strip()
    problems = Problems()
    try:
        with problems.at("job"):
            check_job_name(name)
        found = form.read(problems)
        problems.check()
        options = {"queue": found["queue"], "priority": found["priority"], "run_at": found["at"]}
        made = actions.enqueue(visit, name, found["args"] or [], found["kwargs"] or {}, **options)
    except FORM_ERRORS as error:
        return _show(request, ShownForm("enqueue", {"job": job} | form.values, problems_of(error)))
    to = path(request, "job", {"queue": made.queue}, id=made.id)
    served = live_state(visit.site).is_served
    note = plain_note(made.job, {}, visit.site.client.unique_job, served, made.queue)
    did = "Enqueued" if found["at"] is None else "Scheduled"
    return redirect(request, to, f"{did} {made.job} to {made.queue}.{note and f' Note that {note}'}")


def _show(request: Request, form: ShownForm) -> Response:
    status = 422 if form.problems else 200
    return page(request, "enqueue_page.html", status=status, form=form, highest=MAX_PRIORITY)
