"""Jobs that recur. Each run writes the id of its job."""

import os

import palermo


def write(file, text):
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


@palermo.job(every=1, missed="all", schedule_args=("ticks",))
def tick(file):
    write(file, palermo.current_job().id)


if not os.environ.get("WITHOUT_SWEEP"):

    @palermo.job(cron=os.environ.get("SWEEP", "0 3 * * *"), tz="Europe/Rome", schedule_name="sweep", queue="mail")
    class Sweep:
        def process(self, text="swept"):
            write("sweeps", text)
