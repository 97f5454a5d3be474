"""The number of jobs in each state, for the tabs of job pages. Some seconds old, so that no page waits."""

from contextlib import suppress

from palermo.errors import PalermoError
from palermo.webui import tuning
from palermo.webui.site import Site
from palermo.webui.state.live_state import live_state, totals_of
from palermo.webui.state.scheduled_view import scheduled_view


def tab_counts(site: Site) -> dict[str, int | None]:
    """Return the number of jobs by the name of their page, or None if unknown."""
    later = scheduled_view(site)
    counts = {"scheduled": later.count("scheduled"), "retries": later.count("retrying")}
    with suppress(PalermoError):
        totals = totals_of(live_state(site).snapshot(tuning.RECENT))
        counts |= {"running": totals.busy, "waiting": totals.pending, "failures": totals.failed}
    return counts
