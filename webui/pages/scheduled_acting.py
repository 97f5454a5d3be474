"""Doing something about scheduled jobs: asked first, with their number; then done, and told what became of them."""

import time
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Form, Query
from starlette.requests import Request
from starlette.responses import Response

from palermo import moments
from palermo.config import parse_duration
from palermo.errors import OptionInvalid
from palermo.rows import Row
from palermo.scheduled import GONE, Which
from palermo.timetable import CANCEL, GIVE_UP, MOVE, RUN
from palermo.webui import actions
from palermo.webui.ahead import FIRST, RETRY, ahead
from palermo.webui.errors import Refused
from palermo.webui.formats import plural
from palermo.webui.pages.failures_acting import UNTYPED
from palermo.webui.pages.scheduled import RETRIES, SCHEDULED, Asked, Sheet, asked
from palermo.webui.rendering import page, path, redirect
from palermo.webui.site import Visit, Visiting

router = APIRouter()

#: Seconds that a form waits for what it does, before it leads back to the list.
PATIENCE = 5.0

#: What an action came to, in a word.
_DONE = {CANCEL: "Cancelled", RUN: "Enqueued", MOVE: "Moved", RETRY: "Enqueued", GIVE_UP: "Gave up"}

Ids = Annotated[list[str] | None, Query(max_length=500)]
Texts = Annotated[list[str] | None, Form()]
Act = Annotated[str, Form(max_length=20)]


@router.get("/scheduled/confirm", name="confirm_scheduled")
def confirm_scheduled(
    request: Request, visit: Visiting, act: str, id: Ids = None, every: Annotated[str, Query(alias="all")] = ""
) -> Response:
    """Say how many scheduled jobs are meant, and ask."""
    return _confirm(request, visit, SCHEDULED, act, id, every)


@router.get("/retries/confirm", name="confirm_retries")
def confirm_retries(
    request: Request, visit: Visiting, act: str, id: Ids = None, every: Annotated[str, Query(alias="all")] = ""
) -> Response:
    """Say how many jobs that wait to be tried again are meant, and ask."""
    return _confirm(request, visit, RETRIES, act, id, every)


@router.post("/scheduled/act", name="act_on_scheduled")
def act_on_scheduled(
    request: Request,
    visit: Visiting,
    act: Act,
    id: Texts = None,
    filter: Annotated[str, Form(max_length=10_000)] = "",
    number: Annotated[int, Form(ge=0)] = 0,
    typed: Annotated[str, Form(max_length=50)] = "",
    when: Annotated[str, Form(max_length=100)] = "",
    back: Annotated[str, Form(max_length=10_000)] = "",
) -> Response:
    """Cancel, run or move scheduled jobs."""
    return _act(request, visit, SCHEDULED, act, id, filter, number, typed, back, when)


@router.post("/retries/act", name="act_on_retries")
def act_on_retries(
    request: Request,
    visit: Visiting,
    act: Act,
    id: Texts = None,
    filter: Annotated[str, Form(max_length=10_000)] = "",
    number: Annotated[int, Form(ge=0)] = 0,
    typed: Annotated[str, Form(max_length=50)] = "",
    back: Annotated[str, Form(max_length=10_000)] = "",
) -> Response:
    """Try jobs again now, or give them up."""
    return _act(request, visit, RETRIES, act, id, filter, number, typed, back)


@router.post("/jobs/{id:palermo}/due/{act}", name="act_on_due_job")
def act_on_job(
    request: Request,
    visit: Visiting,
    id: str,
    act: str,
    when: Annotated[str, Form(max_length=100)] = "",
    queue: Annotated[str, Form(max_length=500)] = "",
) -> Response:
    """The same for the job of a page, which is shown again."""
    sheet = RETRIES if act in RETRIES.actions else SCHEDULED
    _check(sheet, act)
    rows = actions.alter_scheduled(visit, act, id, at=later_of(when) if act == MOVE else None, wait=PATIENCE)
    text, level = outcome(act, rows, id=id)
    to = path(request, "job", id=id) + (f"?{urlencode({'queue': queue})}" if queue else "")
    return redirect(request, to, text, level=level)


def _confirm(
    request: Request, visit: Visit, sheet: Sheet, act: str, id: list[str] | None, every: str, **more: Any
) -> Response:
    _check(sheet, act)
    wanted = asked(sheet, request.query_params)
    ids = [] if every else list(dict.fromkeys(id or ()))
    number = ahead(visit.site).page(wanted.chosen, limit=FIRST).total or 0 if every else len(ids)
    if not number:
        text = f"No {sheet.noun} matches that any more." if every else "Select some jobs first."
        return redirect(request, _back(request, sheet, wanted.query), text, level="note")
    return _ask(request, wanted, act, ids, number)


def _ask(request: Request, wanted: Asked, act: str, ids: list[str], number: int, problem: str = "") -> Response:
    return page(
        request,
        "scheduled_confirm.html",
        status=422 if problem else 200,
        sheet=wanted.sheet,
        act=act,
        ids=ids,
        number=number,
        all_of=not ids,
        typed=f"{number}" if number > UNTYPED else "",
        problem=problem,
        query=wanted.query,
        back=_back(request, wanted.sheet, wanted.query),
    )


def _act(
    request: Request,
    visit: Visit,
    sheet: Sheet,
    act: str,
    id: list[str] | None,
    filter: str,
    number: int,
    typed: str,
    back: str,
    when: str = "",
) -> Response:
    _check(sheet, act)
    ids = list(dict.fromkeys(id or ()))
    which: Which = ids or _filter(sheet, filter).chosen
    if max(number, len(ids)) > UNTYPED and "".join(char for char in typed if char.isdecimal()) != str(number):
        raise Refused(422, f"{plural(number, 'job')} were meant, and {typed!r} was typed. Go back and type {number}.")
    try:
        at = later_of(when) if act == MOVE else None
    except (Refused, OptionInvalid) as error:
        problem = error.detail if isinstance(error, Refused) else str(error)
        return _ask(request, asked(sheet, dict(parse_qsl(back))), act, ids, number, problem)
    rows = actions.alter_scheduled(visit, act, which, at=at, wait=PATIENCE)
    text, level = outcome(act, rows, id=ids[0] if len(ids) == 1 else "")
    return redirect(request, _back(request, sheet, back), text, level=level)


def outcome(act: str, rows: list[Row] | None, *, id: str = "") -> tuple[str, str]:
    """What became of them, in a sentence, and how that is to be taken; `id` is for a single one."""
    if rows is None:
        return "That takes a while, and goes on by itself: the list shows how it fares.", "note"
    gone = sum(row["state"] == GONE for row in rows)
    if id and gone:
        return f"It was faster: {id[:80]} has come due already, or was not there. Nothing was done to it.", "note"
    now = act == MOVE and any(row["state"] == "enqueued" for row in rows)
    text = f"{'Enqueued' if now else _DONE[act]} {plural(len(rows) - gone, 'job')}"
    if gone:
        return f"{text}; {gone:,} had come due already, or {'was' if gone == 1 else 'were'} not there.", "note"
    return f"{text}.", "done" if rows else "note"


def later_of(text: str) -> float:
    """Unix seconds of what a form says: a duration from now, or an instant with its zone.

    Raises Refused (422), OptionInvalid.
    """
    text = text.strip()
    try:
        return moments.instant(time.time() + parse_duration(text))
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Refused(422, f"{text[:40]!r} says no time: write 5m or 2d from now, or 2026-12-01T09:00Z.") from None
    if moment.tzinfo is None:
        raise Refused(422, f"{text[:40]!r} has no time zone: write {text[:40]}Z or {text[:40]}+01:00.")
    return moments.instant(moment)


def _filter(sheet: Sheet, text: str) -> Asked:
    """The filter that a form brings back. What it cannot have had must not widen it. Raises Refused (422)."""
    every, _, query = text.partition("&")
    given = dict(parse_qsl(query, keep_blank_values=True))
    if every != "all" or not given.keys() <= {"queue", "job", "retries"}:
        raise Refused(422, "the form does not say which jobs are meant. Go back and choose again.")
    return asked(sheet, given)


def _check(sheet: Sheet, act: str) -> None:
    if act not in sheet.actions:
        raise Refused(422, f"{act[:40]!r} is nothing that can be done here: {', '.join(sheet.actions)}.")


def _back(request: Request, sheet: Sheet, query: str) -> str:
    """The list, as it was asked for; nothing else can be asked for by it."""
    return path(request, sheet.name) + (f"?{query}" if query else "")
