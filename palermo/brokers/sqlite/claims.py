"""Which job is the next to be taken, and what proves that it is ours."""

from dataclasses import dataclass
from functools import cache

from palermo.brokers.sqlite import tenants

#: SQLite functions take 127 arguments; more queues than this are nested.
_QUEUES_PER_CALL = 50


@dataclass(frozen=True, slots=True)
class Claim:
    """What proves that a job is ours: given back and claimed again, it is another claim."""

    job: int
    claims: int


@cache
def first(queues: int) -> str:
    """SQL for the next job in the first of so many queues that has one; coalesce looks no further than it must."""
    one = "(select id from job where queue = ? and holder is null and tenant is null order by id limit 1)"
    groups = [min(_QUEUES_PER_CALL, queues - start) for start in range(0, queues, _QUEUES_PER_CALL)]
    return _coalesce([_coalesce([one, tenants.FIRST] * size) for size in groups])


def _coalesce(parts: list[str]) -> str:
    return f"coalesce({', '.join([*parts, 'null', 'null'])})"
