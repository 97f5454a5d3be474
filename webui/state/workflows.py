"""The workflows shown by pages and the API: running and failed ones from the broker, others from the journal.

Law: HTML and JSON use the same rows, from palermo/inspector/workflow_rows.py. A workflow's detail adds data of its
steps' jobs from the journal and the workers.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from palermo.contract.rows import Listing, Row, iso_instant
from palermo.contract.workflows import WorkflowInfo
from palermo.core.failure import printable
from palermo.core.journal_records import RecordKind
from palermo.core.message import Message
from palermo.core.topology import check_id
from palermo.core.workflow import step_id, step_of
from palermo.errors import NotFound
from palermo.history.entry import Entry
from palermo.history.index import WORKFLOW
from palermo.inspector.workflow_rows import info_of_record, step_rows, workflow_row
from palermo.jobs.redaction import masked_value
from palermo.views.filter import Facts, JobFilter
from palermo.webui import tuning
from palermo.webui.filters import Paging
from palermo.webui.site import Site, Visit
from palermo.webui.state.journal_views import journal_views
from palermo.webui.state.live_state import live_state, running_jobs
from palermo.webui.state.refreshing import Refreshing


def live_workflows(site: Site) -> Refreshing[Sequence[WorkflowInfo]]:
    """Return a site's running and failed workflows, newest first, at most 2 seconds old.

    Getting them raises BrokerError.
    """
    return site.component(
        "live workflows", lambda: Refreshing(lambda: site.inspector.workflows._all()[::-1], fresh=tuning.FRESH)
    )


def workflow_rows(visit: Visit, filter: JobFilter, paging: Paging) -> Listing[Row]:
    """Return a page of the matching workflows: first running and failed ones, then those in the journal."""
    live = live_workflows(visit.site).get()
    matching = [info for info in live if filter.matches(_facts(info))]
    rows = [workflow_row(info) for info in paging.cut(matching)]
    # A workflow that was retried has an earlier end in the journal.
    total, ended = journal_views(visit.site).index.workflows(
        filter,
        without=[printable(info.id) for info in live],
        offset=max(0, paging.offset - len(matching)),
        limit=paging.limit - len(rows),
    )
    rows += [workflow_row(info) for entry in ended if (info := _info_of(entry)) is not None]
    return Listing(rows, len(matching) + total)


def _facts(info: WorkflowInfo) -> Facts:
    return Facts(
        id=printable(info.id),
        state=info.state,
        queue=info.queue,
        job=info.job,
        at=info.began_at,
        texts=lambda: (info.job,),
    )


def workflow_detail(visit: Visit, id: str, inside: str = "") -> Row:
    """Return a workflow's row with `steps` and `cleaned_up`. With `inside`, only the steps that this step added are
    included.

    In addition to workflow_rows.py, a step's row has the `attempt`, `took`, `ended_at` and `error` of its last run. For
    a map it has `jobs`, some of its running members, and `inner`, some that added steps. Raises NotFound.
    """
    site = visit.site
    info = site.inspector.workflows._find(check_id(id)) or _ended(site, id)
    if info is None:
        raise NotFound(f"there is no workflow {id[:80]!r}, or its record has expired.")
    shown = [path for path in info.steps if path.rpartition("/")[0] == inside]
    snapshot = live_state(site).snapshot()
    counted = {path.rpartition("/")[0] for path in info.steps}
    rows = step_rows(info, site.client.serializers, snapshot.queues, snapshot.workers, only=shown)
    named = [row["id"] for row in rows if row["id"] is not None]
    runs = journal_views(site).index.children_named(step_id(info.id, inside) if inside else info.id, named)
    running = {job["id"]: job for job in running_jobs(snapshot)}
    steps = [
        {
            **row,
            "output": masked_value(row["output"], site.hidden),
            **_run(row, runs.get(row["id"])),
            "jobs": list(_members(running, info.id, row)),
            "inner": sorted(path for path in counted if path.startswith(f"{row['name']}:"))[: tuning.SOME],
        }
        for row in rows
    ]
    return {**workflow_row(info), "inside": inside, "steps": steps, "cleaned_up": list(info.cleaned_up)}


def workflow_of(id: str, message: Message | None, parent: str, life: Sequence[Row]) -> tuple[str, str] | None:
    """Return a job's workflow and the path of its step ("" for the workflow's own job); None for other jobs."""
    step = None if message is None else step_of(message.extra)
    if step is not None:
        return step[:2]
    if parent and id.startswith(f"{parent}/"):  # workers don't report the headers of a running job
        return parent, id.removeprefix(f"{parent}/")
    return (id, "") if any(row["kind"] == RecordKind.EXPANDED for row in life) else None


def _ended(site: Site, id: str) -> WorkflowInfo | None:
    """Return a finished workflow from the journal."""
    views = journal_views(site)
    views.wait_until_read()
    entries = (entry for entry in reversed(views.index.of(id)) if WORKFLOW in entry.more)
    return next((info for entry in entries if (info := _info_of(entry)) is not None), None)


def _info_of(entry: Entry) -> WorkflowInfo | None:
    """Return the workflow in a journal record of its end."""
    known: dict[str, Any] = {
        "kind": entry.kind,
        "id": entry.id,
        "at": entry.at,
        "job": entry.job,
        "queue": entry.queue,
        "took": entry.took,
    }
    return info_of_record({**entry.more, **known})


def _run(step: Row, entry: Entry | None) -> Row:
    """Return a step's last run in the journal, with its job and queue if the broker doesn't know them."""
    if entry is None or entry.state is None:
        return {"attempt": None, "took": None, "ended_at": None, "error": None}
    row = entry.row()
    known = {name: step[name] or row[name] or None for name in ("job", "queue")}
    ended = {"attempt": row["attempt"], "took": row["took"], "ended_at": iso_instant(entry.at), "error": row["error"]}
    return {**known, **ended}


def _members(running: Mapping[str, Row], id: str, row: Row) -> Iterator[Row]:
    """Yield some of a map's running members."""
    if row["running"]:
        prefix = step_id(id, f"{row['name']}:")
        found = [job for job in running.values() if job["id"].startswith(prefix)]
        yield from ({"id": job["id"], "worker": job["worker"]} for job in found[: tuning.SOME])
