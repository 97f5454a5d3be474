"""The stream that tells pages when something has changed: server-sent events. Where those are blocked, pages ask."""

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Annotated, Literal

import anyio
from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from palermo.errors import PalermoError
from palermo.history.telling import life
from palermo.timetable import Chosen
from palermo.webui.ahead import ahead
from palermo.webui.errors import Refused
from palermo.webui.journaled import journaled
from palermo.webui.site import Site, Visiting
from palermo.webui.watching import Watching, watching

router = APIRouter()

#: Pages with lists that the queues' counts tell nothing of.
Of = Literal["", "scheduled", "retries", "recurring", "history", "job"]

_WATCHED = {"scheduled": Chosen(), "retries": Chosen(retries=True), "recurring": None}

#: Streams at one time; who comes too many asks now and then instead.
STREAMS = 100

#: Seconds after which a stream ends, for the browser to ask again: nobody's rights are older than that, and no
#: server waits longer for streams when it stops.
LASTING = 300.0

#: Seconds between two looks at whether the server stops or the broker answers.
_STEP = 0.25


@router.get("/live", name="events")
async def events(
    visit: Visiting,
    request: Request,
    every: Annotated[float, Query(ge=1, le=60)] = 2.0,
    of: Of = "",
    seen: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    id: Annotated[str, Query(max_length=1_000)] = "",
    looked: Annotated[str, Query(max_length=100)] = "",
) -> Response:
    """Tells when queues or workers have changed; `of` names a page whose own list is watched besides.

    `looked` is which snapshot of queues and workers the page was made from, `seen` which version of the journal, or how
    much that told of the job `id`: what came since then is told at once.
    """
    look = await run_in_threadpool(watching, visit.site)
    if look.streams >= STREAMS:
        raise Refused(503, f"there are {STREAMS} live pages already; this one will ask now and then instead.")
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    told = _told(visit.site, of, id)
    return StreamingResponse(
        _changes(visit.site, look, every, of, told, (looked or None, seen)),
        media_type="text/event-stream",
        headers=headers,
    )


def _told(site: Site, of: Of, id: str) -> Callable[[], int | None]:
    """What tells whether the journal says more than before; None for pages that have nothing of it."""
    if of == "history":
        return lambda: journaled(site).progress.version
    if of == "job":
        return lambda: len(life(journaled(site).index, journaled(site).audit, id))
    return lambda: None


async def _changes(
    site: Site,
    look: Watching,
    every: float,
    of: Of,
    told: Callable[[], int | None],
    before: tuple[str | None, int | None],
) -> AsyncIterator[str]:
    look.streams += 1
    try:
        yield "retry: 2000\nevent: hello\ndata: 1\n\n"
        steps = max(1, round(every / _STEP))
        for nth in range(int(LASTING / _STEP)):
            if site.stopping.is_set():
                return
            if nth % steps == 0:
                now = (
                    await run_in_threadpool(_version, site, look, every, of),
                    await run_in_threadpool(told),
                )
                changed = any(was is not None and was != found for was, found in zip(before, now, strict=True))
                # A comment keeps proxies from taking silence for the end.
                yield f"event: change\ndata: {now[0]} {now[1] or 0}\n\n" if changed else ": \n\n"
                before = now
            await anyio.sleep(_STEP)
    finally:
        look.streams -= 1


def _version(site: Site, look: Watching, every: float, of: Of) -> str:
    try:
        version = look.snapshot(min(1.0, every / 2)).version
    except PalermoError:
        # A page that is told of a change asks for it, and learns there that the broker is away.
        return "away"
    if of in _WATCHED:
        with suppress(PalermoError):  # a list that takes long to read is renewed with the next change
            version += ahead(site).version(_WATCHED[of])
    return version
