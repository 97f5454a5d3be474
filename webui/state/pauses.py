"""The pause of a queue as the journal knows it: the last such action, with its user, time and reason."""

from palermo.contract.rows import Row
from palermo.history.filters import AuditFilter
from palermo.webui.site import Site
from palermo.webui.state.journal_views import journal_views

#: The names of the actions.
PAUSE, PAUSE_ALL = "pause", "pause all"


def pause_of(site: Site, queue: str) -> Row | None:
    """The action that paused a queue; None if the journal does not know it, or is off or still being read."""
    return _last(site, AuditFilter(action=PAUSE), queue)


def pause_of_all(site: Site) -> Row | None:
    """The action that paused all queues; None if the journal does not know it."""
    return _last(site, AuditFilter(action=PAUSE_ALL), None)


def _last(site: Site, wanted: AuditFilter, queue: str | None) -> Row | None:
    known = journal_views(site)
    if known.off or not known.progress.ready:
        return None
    # A queue's name may look like a pattern: it is compared here, and not by the filter.
    rows = known.audit.page(wanted, limit=_LOOKED_AT)
    return next((row for row in rows if row["queue"] == queue and row["outcome"] == "done"), None)


#: The most actions that are looked through.
_LOOKED_AT = 200
