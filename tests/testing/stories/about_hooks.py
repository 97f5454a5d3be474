"""Stories of hooks: each kind of job, with something that happens at each point of its life."""

from collections.abc import Iterator
from itertools import product

import stories

from tests.testing.stories.telling import Site, add

KINDS = {
    "function": stories.hooked_function,
    "coroutine": stories.hooked_coroutine,
    "class": stories.HookedClass,
}

#: The points, and what can happen at each.
POINTS = {
    "before_enqueue": ("raise", "false", "refuse enqueue"),
    "after_enqueue": ("raise",),
    "before_process": ("raise", "false", "refuse", "exit"),
    "around enter": ("raise", "refuse"),
    "process": ("raise", "refuse", "exit"),
    "around exit": ("raise",),
    "after_process": ("raise", "exit"),
}


def _hooked(kind: str, where: str, how: str) -> None:
    def tell(site: Site) -> Iterator[None]:
        site.try_enqueue(KINDS[kind], where, how)
        yield

    add(f"a {kind} where {where or 'nothing'} does {how or 'nothing'}", tell)


for kind in KINDS:
    _hooked(kind, "", "")
for kind, (where, hows) in product(KINDS, POINTS.items()):
    for how in hows:
        _hooked(kind, where, how)
