"""A hook that writes down how many jobs wait, and wants a slot to start one in ten minutes until `hurry` is there."""

import os

from shop import write

import palermo


@palermo.hook
def queue_size(worker, sizes):
    write("sizes", f"jobs {sizes.get('jobs', 0)}")
    return None if os.path.exists("hurry") else 600
