"""Hooks for the worker's tests, each of which writes down where it ran. PALERMO_TEST_TRACE names the file."""

import os

from crew import write

import palermo

TRACE = os.environ["PALERMO_TEST_TRACE"]


def trace(name, *more):
    write(TRACE, " ".join([name, str(os.getpid()), *more]))


def worker_hook(name):
    def run(context):
        trace(name, context.id, ",".join(context.queues))

    run.__name__ = run.__qualname__ = name
    return palermo.hook(run)


@palermo.hook
def queue_size(context, sizes):
    # The worker asks by the clock, so how often it is told is no part of a trace.
    if not os.path.exists(f"{TRACE}.sizes"):
        write(f"{TRACE}.sizes", f"queue_size {os.getpid()} {sorted(sizes)}")


WHILE_RUNNING = ("before_first_fork", "before_fork", "after_fork", "queue_empty", "before_pause", "after_pause")
for name in (*WHILE_RUNNING, "shutdown", "worker_exit"):
    worker_hook(name)


@palermo.hook
def before_process(definition, *args, **kwargs):
    trace("before_process", definition.name)


@palermo.hook
def around_process(definition, *args, **kwargs):
    trace("around_process")
    yield
    trace("around_process_ends")


@palermo.hook
def after_process(definition, *args, **kwargs):
    trace("after_process")


@palermo.hook
async def on_success(definition, returned, *args, **kwargs):
    trace("on_success")


@palermo.hook
def on_failure(definition, error, *args, **kwargs):
    trace("on_failure", type(error).__name__, str(args))


@palermo.hook
def on_exhausted(definition, error, *args, **kwargs):
    trace("on_exhausted")


@palermo.job(retries=1, backoff=0)
def raises_twice():
    raise ValueError("twice")
