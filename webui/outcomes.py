"""What became of jobs, for pages and API: their status and what they returned, redacted."""

from dataclasses import dataclass
from typing import Any

from palermo import results
from palermo.core.topology import check_id
from palermo.errors import NotFound
from palermo.status import JobStatus, State
from palermo.webui.errors import Refused
from palermo.webui.redact import value_shown
from palermo.webui.site import Visit


@dataclass(frozen=True, slots=True)
class Returned:
    """What a job returned."""

    job: str
    value: Any


def status(visit: Visit, id: str) -> JobStatus:
    """See palermo.status.JobStatus. Raises IdInvalid."""
    client = visit.site.client
    return results.status(client, client.job_by_id(check_id(id)))


def result(visit: Visit, id: str) -> Returned:
    """What a job that has ended returned.

    Raises NotFound for one that nothing is known of, ResultError for one that has no result, and Refused (409) for one
    that has none yet.
    """
    client = visit.site.client
    job = client.job_by_id(check_id(id))
    found = results.known(client, job)
    if found is None:
        state = results.status(client, job)
        if state.state is State.UNKNOWN:
            raise NotFound(f"job {id}: {state.reason}")
        raise Refused(409, f"job {id} is {state}, and has no result yet.")
    value = None if results.encoded(found) is None else results.shown(client, found)
    return Returned(str(found.get("job", "")), value_shown(value, visit.site.hidden))
