"""The names that forms suggest while the user types: jobs with their signatures, queues and time zones."""

from contextlib import suppress
from functools import cache
from zoneinfo import available_timezones

from msgspec import Struct

from palermo.core.text import shorter
from palermo.core.topology import is_failed
from palermo.errors import PalermoError
from palermo.jobs import registry
from palermo.webui import tuning
from palermo.webui.site import Site
from palermo.webui.state.live_state import live_state
from palermo.webui.state.refreshing import Refreshing
from palermo.webui.state.search import job_names

#: The areas with inhabited time zones. Other zones can be typed.
_AREAS = (
    *("Africa", "America", "Antarctica", "Arctic", "Asia"),
    *("Atlantic", "Australia", "Europe", "Indian", "Pacific"),
)


class Offers(Struct, frozen=True):
    """The names that forms suggest."""

    #: Each job with its signature, or "" if unknown.
    jobs: dict[str, str]
    queues: tuple[str, ...]

    def signature(self, job: str) -> str:
        """Return the job's signature, or "" if unknown."""
        return self.jobs.get(job, "")


def offers(site: Site) -> Offers:
    """Return the jobs and queues known to the broker, from the code imported here, and announced by workers.

    At most ten seconds old. Parts that the broker doesn't answer are omitted.
    """
    return site.component("offers", lambda: Refreshing(lambda: _known(site), fresh=tuning.RECENT)).get()


def _known(site: Site) -> Offers:
    jobs = dict.fromkeys(job_names(site), "")
    queues: list[str] = []
    with suppress(PalermoError):
        for job in site.inspector.keys.announced():
            jobs[job.name] = "" if job.signature is None else shorter(str(job.signature), tuning.TEXT)
    for name in registry.names():
        jobs[name] = shorter(str(registry.get(name).signature), tuning.TEXT)
    with suppress(PalermoError):
        queues = [row["name"] for row in live_state(site).snapshot(5.0).queues if not is_failed(row["name"])]
    return Offers({name: jobs[name] for name in sorted(jobs)[: tuning.LIMIT]}, tuple(queues[: tuning.LIMIT]))


@cache
def time_zones() -> tuple[str, ...]:
    """Return the time zones that forms suggest, by name, starting with UTC."""
    return ("UTC", *sorted(name for name in available_timezones() if name.partition("/")[0] in _AREAS))
