"""A worker_exit hook that does not come to an end."""

import time

import palermo


@palermo.hook
def worker_exit(context):
    time.sleep(600)
