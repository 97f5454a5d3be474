"""Every hook that there is; each says in the file `trace` that it ran."""

from shop import write

import palermo


def trace(text):
    write("trace", text)


@palermo.job(retries=1, backoff=0)
class Work:
    def before_enqueue(self, text):
        trace(f"before_enqueue {text}")
        return text != "veto"

    def after_enqueue(self, text):
        trace(f"after_enqueue {text}")

    def before_process(self, text):
        trace(f"before_process {text}")
        if text == "skip":
            raise palermo.DontProcess

    def around_process(self, text):
        trace(f"around_process in {text}")
        yield
        trace(f"around_process out {text}")

    def process(self, text):
        trace(f"process {text}")
        if text == "fail":
            raise KeyError(text)

    def after_process(self, text):
        trace(f"after_process {text}")

    def on_success(self, result, text):
        trace(f"on_success {text}")

    def on_failure(self, error, text):
        trace(f"on_failure {text} {type(error).__name__}")

    def on_exhausted(self, error, text):
        trace(f"on_exhausted {text} {type(error).__name__}")

    def before_dequeue(self, text):
        trace(f"before_dequeue {text}")

    def after_dequeue(self, text):
        trace(f"after_dequeue {text}")


@palermo.hook
def before_first_fork(worker):
    trace("before_first_fork")


@palermo.hook
def before_fork(worker):
    trace("before_fork")


@palermo.hook
def after_fork(worker):
    trace("after_fork")


@palermo.hook
def queue_empty(worker):
    trace("queue_empty")


@palermo.hook
def queue_size(worker, sizes):
    trace("queue_size")


@palermo.hook
def before_pause(worker):
    trace("before_pause")


@palermo.hook
def after_pause(worker):
    trace("after_pause")


@palermo.hook
def shutdown(worker):
    trace(f"shutdown {worker.id}")


@palermo.hook
def worker_exit(worker):
    trace(f"worker_exit {worker.id}")
