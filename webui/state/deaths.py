"""Dead workers, from the journal and the list of existing workers."""

from palermo.contract.rows import iso_instant
from palermo.history.worker_lives import WorkerLife
from palermo.webui.site import Site
from palermo.webui.state.journal_views import JournalViews
from palermo.webui.state.live_state import LiveState


def deaths(site: Site, *, since: float | None = None) -> list[WorkerLife]:
    """Return the workers that ended without a record, latest first. `since` limits when they were last seen.

    Based on known data, without asking the broker. Empty if the journal is off or still being read.
    """
    views, live = site.existing(JournalViews), site.existing(LiveState)
    snapshot = live.sampler.last if live is not None else None
    if views is None or not views.ready or live is None or snapshot is None:
        return []
    found = views.lives.deaths(snapshot.workers, snapshot.at, seen=live.sampler.seen)
    return [life for life in found if since is None or life.heard_at >= since]


def fatal_runs(site: Site, job: str) -> set[tuple[str, str | None]]:
    """Return the runs of a job during which a worker died: the worker's id, and the run's start in ISO 8601."""
    runs = ((life.id, run) for life in deaths(site) for run in life.last_jobs)
    return {(worker, iso_instant(run.started_at)) for worker, run in runs if run.id == job}
