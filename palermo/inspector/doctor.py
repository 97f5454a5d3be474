"""The checks of `palermo doctor`, which find problems and suggest solutions.

Broker.diagnose finds problems of the broker, and palermo.inspector.problems those of queues, workers and jobs. This
module checks the rest: versions, settings and their sources, and whether the broker is reachable.
"""

import os
import platform
import stat
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from palermo.client.client import Client
from palermo.contract import clock
from palermo.contract.broker import Finding
from palermo.contract.journal import ReadFrom
from palermo.contract.row_types import FindingRow
from palermo.contract.trouble import unless_blocked
from palermo.core.journal_records import JournalLevel
from palermo.core.text import count, nearest, some_of
from palermo.core.topology import is_failed
from palermo.errors import PalermoError
from palermo.history.journal_reader import read_to_end
from palermo.history.statistics import Summary
from palermo.history.worker_lives import WorkerLives
from palermo.inspector.check import oldest_age
from palermo.inspector.inspector import Inspector
from palermo.inspector.problems import (
    COUNTED,
    DEATHS,
    WORST_FIRST,
    Outcomes,
    grouped,
    outcomes,
    overdue,
    present,
    workers_text,
)
from palermo.settings.environment import VARIABLES, unknown_variables
from palermo.settings.settings import SettingOrigin, Settings

#: Maximum number of queues whose first job is read, and seconds for finding the first due job.
_AGED, _DUE_WITHIN = 20, 10.0


def examine(client: Client, sources: list[SettingOrigin], *, mend: bool = False) -> list[Finding]:
    """Return all findings about this program, its settings and its broker. Raises no PalermoError.

    `mend` frees the keys of unique jobs that no longer exist.
    """
    found = [*_program(), *settings_findings(client.settings, sources), *_variables()]
    try:
        found += broker_findings(client, mend=mend)
    except PalermoError as error:
        return [*found, away(error)]
    try:
        known = {finding.text for finding in found}
        # The broker's own checks may already have found the trouble by experiment.
        found += [finding for finding in _now(client) if finding.text not in known]
    except PalermoError as error:
        found.append(
            Finding.problem("queues", f"cannot be read: {error}", "Queues, workers and jobs were not checked.")
        )
    return found


def broker_findings(client: Client, *, mend: bool = False) -> list[Finding]:
    """Return the broker's findings, and those about unique keys. Raises PalermoError."""
    found = grouped(client.run(lambda broker: broker.diagnose(), again=True))
    try:
        return [*found, _keys(client, mend=mend)]
    except PalermoError as error:
        return [
            *found,
            Finding.warning("unique jobs", f"keys cannot be read: {error}", "Unique jobs were not checked."),
        ]


def away(error: PalermoError) -> Finding:
    """The finding about a broker that cannot be reached."""
    return Finding.problem("connection", f"{type(error).__name__}: {error}", "The other checks were skipped.")


def settings_findings(settings: Settings, sources: list[SettingOrigin]) -> list[Finding]:
    """Return findings about settings: non-default values with their sources, and secrets readable by other users."""
    listed = ", ".join(f"{source.setting} = {source.shown} ({source.origin})" for source in sources)
    found = [Finding.ok("settings", listed or f"all are defaults; the broker is {settings.address}")]
    for source in sources:
        if source.setting in ("url", "signing_keys") and _holds_secret(settings, source) and _readable(source.origin):
            advice = f"Run chmod 640 {source.origin}, or set PALERMO_{source.setting.upper()} instead."
            text = f"{source.origin} contains a secret ({source.setting}), but all users of this machine can read it"
            found.append(Finding.warning("settings file", text, advice))
    return found


def row(finding: Finding) -> FindingRow:
    return {
        "check": finding.check,
        "level": finding.level,
        "text": finding.text,
        "advice": finding.advice or None,
        "names": list(finding.names),
    }


def _now(client: Client) -> list[Finding]:
    """Return the current problems of queues, workers and jobs, or findings that there are none."""
    inspector, brief, found = Inspector(client), Inspector(client, within=_DUE_WITHIN), list[Finding]()
    jobs: dict[str, Outcomes] = {}
    lives = WorkerLives()
    try:
        if client.settings.journal != JournalLevel.OFF:
            summary = Summary(clock.now() - COUNTED)
            read_to_end(client, [summary, lives], ReadFrom(since=clock.now() - DEATHS))
            jobs = outcomes(summary.report(clock.now()).parts["job"])
    except PalermoError as error:
        found.append(Finding.warning("journal", f"cannot be read: {error}", "Failures of jobs were not checked."))
    now = inspector.snapshot()
    queues, workers = now.queues, now.workers
    served = [row["name"] for row in queues if row["pending"] and row["workers"] and not is_failed(row["name"])]
    wrong = present(
        queues,
        workers,
        all_paused=now.all_paused,
        ages={name: oldest_age(inspector, name, now.at) for name in served[:_AGED]},
        jobs=jobs,
        deaths=lives.deaths(workers, now.at),
        trouble=now.trouble,
        overdue=overdue(now, lambda due: brief.scheduled.list(due, limit=1), brief.recurring.list),
    )
    found += [each.finding for each in wrong]
    if now.trouble is not None:
        found.append(Finding.ok("workers", f"{count(len(workers), 'worker')} alive, but not checked"))
    elif not any(each.kind == "silent" for each in wrong):
        found.append(Finding.ok("workers", workers_text(workers)))
    if now.trouble is None and not any(each.kind in (*WORST_FIRST, "overdue") for each in wrong):
        found.append(Finding.ok("queues", "every queue with waiting jobs has a worker, and no job is late"))
    return found


def _keys(client: Client, *, mend: bool) -> Finding:
    """Check that a job exists for every unique key. `mend` frees other keys."""
    check = "unique jobs"
    strays = client.run(lambda broker: unless_blocked(broker, broker.keys.orphaned()), again=True)
    if not strays:
        return Finding.ok(check, "all keys have their jobs")
    names = [stray.key for stray in strays]
    shown = some_of([repr(name) for name in names])
    if mend:
        freed = client.run(lambda broker: broker.keys.free(names))
        return Finding.ok(check, f"freed {count(len(freed), 'key')} whose jobs no longer exist: {shown}")
    return Finding.problem(
        check,
        f"{count(len(names), 'key')} of jobs that no longer exist {'blocks' if len(names) == 1 else 'block'} other"
        f" jobs from being enqueued: {shown}. Another program may have purged their queue or removed them.",
        "Free them with palermo doctor --mend or palermo unique free --orphaned.",
    )


def _program() -> list[Finding]:
    loop = "uvloop" if find_spec("uvloop") else "asyncio's own loop (pip install 'palermo[fast]' for a faster one)"
    try:
        own = version("palermo")
    except PackageNotFoundError:
        own = "not installed"
    here = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()}"
    return [Finding.ok("program", f"Palermo {own}, {here}, {loop}")]


def _variables() -> list[Finding]:
    """Return a finding for each environment variable that looks like a setting but isn't one."""
    return [
        Finding.warning(
            "variables",
            f"{variable} is set, but there is no such setting.{nearest(variable, VARIABLES, cutoff=0.85)}",
            "Correct its name or unset it. docs/reference/settings.md lists all variables.",
        )
        for variable in unknown_variables()
    ]


def _holds_secret(settings: Settings, source: SettingOrigin) -> bool:
    return source.setting == "signing_keys" or settings.address.password not in ("", "guest")


def _readable(origin: str) -> bool:
    """Whether this is a file that other users can read."""
    try:
        return os.path.isabs(origin) and bool(os.stat(origin).st_mode & stat.S_IROTH)
    except OSError:
        return False
