"""SQL that finds the next job in queues of which the first come first."""

from functools import cache

#: SQLite functions take 127 arguments; more queues than this are nested.
_QUEUES_PER_CALL = 100


@cache
def first(queues: int) -> str:
    """SQL for the oldest job in the first of so many queues that has one; coalesce looks no further than it must."""
    one = "(select id from job where queue = ? and holder is null order by id limit 1)"
    groups = [min(_QUEUES_PER_CALL, queues - start) for start in range(0, queues, _QUEUES_PER_CALL)]
    return _coalesce([_coalesce([one] * size) for size in groups])


def _coalesce(parts: list[str]) -> str:
    return f"coalesce({', '.join([*parts, 'null', 'null'])})"
