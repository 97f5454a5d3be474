"""The stream of server-sent events that notifies pages of changes. If such events are blocked, pages poll."""

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Literal

import anyio
from fastapi import Query
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from palermo.errors import PalermoError
from palermo.history.listings import life
from palermo.webui import tuning
from palermo.webui.filters import PageNumber, Paging
from palermo.webui.pages.scheduled import JOB_LISTS, asked_jobs
from palermo.webui.site import Refused, Site, Visit, Visiting
from palermo.webui.state.journal_views import journal_views
from palermo.webui.state.live_state import LiveState, live_state
from palermo.webui.state.scheduled_view import scheduled_view
from palermo.webui.threads import Router, Threads

router = Router()

#: Pages whose lists may change without a change in the queues' counts.
Of = Literal["", "scheduled", "retries", "recurring", "history", "job", "workers"]

#: One thread per stream, separate from those of pages, which therefore aren't blocked by a slow broker.
_THREADS = Threads("palermo-live", tuning.THREADS)


@router.get("/live", name="events")
async def events(
    visit: Visiting,
    request: Request,
    every: Annotated[float, Query(ge=1, le=60)] = 2.0,
    of: Of = "",
    id: Annotated[str, Query(max_length=1_000)] = "",
    number: PageNumber = 1,
) -> Response:
    """Stream the changes of queues or workers. `of` names a page whose own list is watched too.

    `id` is the job of a job's page. A page of scheduled jobs sends its filter and page number. The first change is sent
    immediately, because something may have changed since the page was rendered, and each change is sent twice.
    """
    live = await run_in_threadpool(live_state, visit.site)
    if live.streams >= tuning.THREADS:
        raise Refused(503, f"only {tuning.THREADS} pages can have live updates at a time, so this page polls instead.")
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    list_version = _list_version(visit.site, of, id, request.query_params, number)
    live.streams += 1  # No other coroutine runs between the check above and this, so the limit is never exceeded.
    return _CountedStream(
        live,
        _changes(visit, live, every, list_version),
        headers=headers,
    )


class _CountedStream(StreamingResponse):
    """A stream that is counted until it ends, even if it ends before its first line."""

    def __init__(self, live: LiveState, content: AsyncIterator[str], *, headers: dict[str, str]) -> None:
        super().__init__(content, media_type="text/event-stream", headers=headers)
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._live.streams -= 1


def _list_version(site: Site, of: Of, id: str, query: QueryParams, number: int) -> Callable[[], str]:
    """Return a function whose text changes when the page's own list does, and which raises PalermoError."""
    if of in JOB_LISTS:
        # The same cached listing that the page shows.
        chosen = asked_jobs(JOB_LISTS[of], query).filter
        return lambda: scheduled_view(site).version(chosen, offset=Paging(number).offset)
    known: dict[str, Callable[[], str]] = {
        "history": lambda: str(journal_views(site).progress.version),
        # The newest row, because the number of rows is limited.
        "job": lambda: str(life(journal_views(site).index, journal_views(site).audit, id)[-1:]),
        "workers": lambda: str(live_state(site).sampler.usage.version),
        "recurring": lambda: scheduled_view(site).recurring_version(),
    }
    return known.get(of, str)


async def _changes(visit: Visit, live: LiveState, every: float, list_version: Callable[[], str]) -> AsyncIterator[str]:
    yield "retry: 2000\nevent: hello\ndata: 1\n\n"
    site, steps, role_steps = visit.site, max(1, round(every / tuning.BRIEF)), round(tuning.FRESH / tuning.BRIEF)
    before, new = "", False
    for nth in range(int(tuning.WINDOW / tuning.BRIEF)):
        if site.stopping.is_set():
            return
        if nth and nth % role_steps == 0 and not await visit.is_current():
            return
        if nth % steps == 0:
            now = await _THREADS.run(partial(_version, live, every, list_version))
            # Sent twice, because something may appear and vanish between two checks, just when the page is rendered.
            again, new = new, now != before
            # A comment line keeps proxies from closing a silent stream.
            yield f"event: change\ndata: {now}\n\n" if new or again else ": \n\n"
            before = now
        await anyio.sleep(tuning.BRIEF)


def _version(live: LiveState, every: float, list_version: Callable[[], str]) -> str:
    try:
        version = str(live.snapshot(min(1.0, every / 2)).version)
    except PalermoError:
        # The change makes the page reload, and it then shows that the broker is unavailable.
        return "away"
    with suppress(PalermoError):  # A list that takes long to read is updated with the next change.
        version += f" {list_version()}"
    return version
