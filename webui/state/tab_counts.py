"""How many jobs are in each state, for the tabs of the pages of jobs: as of a recent look, so that no page waits."""

from contextlib import suppress

from palermo.errors import PalermoError
from palermo.webui.site import Site
from palermo.webui.state.live_state import live_state, totals_of
from palermo.webui.state.scheduled_view import scheduled_view

#: Seconds for which a look at the queues is recent enough.
_RECENT = 10.0


def tab_counts(site: Site) -> dict[str, int | None]:
    """The number of jobs by the name of the page that has them; None where it is not known now."""
    later = scheduled_view(site)
    counts = {"scheduled": later.count("scheduled"), "retries": later.count("retrying")}
    with suppress(PalermoError):
        totals = totals_of(live_state(site).snapshot(_RECENT))
        counts |= {"running": totals.busy, "waiting": totals.pending, "failures": totals.failed}
    return counts
