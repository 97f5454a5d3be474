"""The pause of a queue as the journal knows it: the action with its user, time and reason.

Who pauses a paused queue again without a reason does not take away the reason of the first.
"""

from itertools import takewhile

from palermo.contract.rows import Row
from palermo.history.filters import AuditFilter
from palermo.webui.site import Site
from palermo.webui.state.journal_views import journal_views


def pause_of(site: Site, queue: str) -> Row | None:
    """The action that paused a queue; None if the journal does not know it, or is off or still being read."""
    return _last(site, queue, "")


def pause_of_all(site: Site) -> Row | None:
    """The action that paused all queues; None if the journal does not know it."""
    return _last(site, None, " all")


def _last(site: Site, queue: str | None, suffix: str) -> Row | None:
    """The last pause with a reason since the last resume, else the last pause; `suffix` ends both actions' names."""
    known = journal_views(site)
    if known.off or not known.progress.ready:
        return None
    # The pattern fits both names. A queue's name may look like a pattern: it is compared here, and not by the filter.
    rows = known.audit.page(AuditFilter(action=f"*[sm]e{suffix}"), limit=_LOOKED_AT)
    own = (row for row in rows if row["queue"] == queue and row["outcome"] == "done")
    pauses = list(takewhile(lambda row: row["action"] == f"pause{suffix}", own))
    return next((row for row in pauses if row["what"]), pauses[0] if pauses else None)


#: The most actions that are looked through.
_LOOKED_AT = 200
