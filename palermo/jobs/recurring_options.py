"""The recurring options of a job: from `cron`, `every` and their companions to the recurring job that they declare."""

from collections.abc import Mapping
from typing import Any

from palermo.contract.recurring import RecurringJob, every_seconds
from palermo.errors import OptionInvalid
from palermo.jobs.definition import JobDefinition
from palermo.jobs.options import RECURRING_OPTIONS, split_arguments


def recurring_job(definition: JobDefinition, options: Mapping[str, Any]) -> RecurringJob | None:
    """The recurring job that the options of `@palermo.job` declare; None if they declare none.

    Raises OptionInvalid, and ArgumentsInvalid for arguments that the job does not take.
    """
    given = {name: value for name, value in options.items() if name in RECURRING_OPTIONS and value is not None}
    if not given:
        return None
    if "cron" not in given and "every" not in given:
        raise OptionInvalid(f"job {definition.name!r}: {next(iter(given))}= says nothing without cron= or every=.")
    args, kwargs = split_arguments(given.get("schedule_args", ()))
    definition.bind(args, kwargs)
    every = given.get("every")
    return RecurringJob(
        name=given.get("schedule_name", definition.name),
        job=definition.name,
        cron=given.get("cron", ""),
        every=None if every is None else every_seconds(every),
        tz=given.get("tz", "UTC"),
        missed=given.get("missed", "once"),
        args=tuple(args),
        kwargs=dict(kwargs),
    )
