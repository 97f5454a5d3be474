"""The status and the result of a job, for the pages and the API. Hidden values in results are masked."""

from dataclasses import dataclass
from typing import Any

from palermo.client import results
from palermo.client.status import JobStatus, State
from palermo.core.topology import check_id
from palermo.errors import NotFound
from palermo.inspector.masking import masked_value
from palermo.webui.base.site import Refused, Visit


@dataclass(frozen=True, slots=True)
class ReturnedValue:
    """The value that a job returned."""

    job: str
    value: Any


def status(visit: Visit, id: str) -> JobStatus:
    """The job's status: see palermo.client.status.JobStatus. Raises IdInvalid."""
    client = visit.site.client
    return results.status(client, client.job_by_id(check_id(id)))


def result(visit: Visit, id: str) -> ReturnedValue:
    """The value that a job returned.

    Raises NotFound if nothing is known of the job, ResultError if it has no result, and Refused (409) if it has no
    result yet.
    """
    client = visit.site.client
    job = client.job_by_id(check_id(id))
    found = results.find_end(client, job)
    if found is None:
        state = results.status(client, job)
        if state.state is State.UNKNOWN:
            raise NotFound(f"job {id}: {state.reason}")
        raise Refused(409, f"job {id} is {state}, and has no result yet.")
    value = None if results.serialized_result(found) is None else results.result_as_json(client, found)
    return ReturnedValue(str(found.get("job", "")), masked_value(value, visit.site.hidden))
