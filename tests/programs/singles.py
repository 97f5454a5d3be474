"""Unique jobs, for programs that enqueue them without this code."""

from shop import write

import palermo


@palermo.job(unique="until_done")
def sync(shop, *, full=False):
    write("notes", shop)
