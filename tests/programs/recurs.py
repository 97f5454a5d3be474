"""Jobs that recur. Each run writes the id of its job, and a clock by which it came before its tick."""

import os
import time
from datetime import datetime

from shop import write

import palermo


@palermo.job(every=1, missed="all", schedule_args=("ticks",))
def tick(file):
    seen = {"strftime": int(time.strftime("%s")), "datetime": datetime.now().timestamp(), "time": time.time()}
    id = palermo.current_job().id
    write(file, id)
    tick = id.partition("@")[2]
    if tick and (early := [clock for clock in seen if seen[clock] < datetime.fromisoformat(tick).timestamp()]):
        write("early", f"{id} {early}")


if not os.environ.get("WITHOUT_SWEEP"):

    @palermo.job(cron=os.environ.get("SWEEP", "0 3 * * *"), tz="Europe/Rome", schedule_name="sweep", queue="mail")
    class Sweep:
        def process(self, text="swept"):
            write("sweeps", text)
