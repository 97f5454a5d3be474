"""Jobs that enqueue others, in each way that there is."""

from shop import fail, fail_for_long, hold, note, write

import palermo


@palermo.subscribe("family.grown", group="aunts")
def congratulate(name):
    write("notes", f"congratulated {name}")


@palermo.job
def settle_down():
    """Enqueue a job in each way."""
    hold.options(id="runs").enqueue("runs")
    fail.options(id="fails").enqueue("fails")
    fail_for_long.options(id="retries").enqueue("retries")
    note.options(id="waits", queue="nobody").enqueue("waits")
    note.options(id="later", delay=3_600).enqueue("later")
    note.options(id="limited", queue="nobody", limit=1).enqueue("limited")
    note.options(id="unique", queue="nobody", unique="until_done").enqueue("unique")
    note.options(id="tenant", queue="nobody", tenant="acme").enqueue("tenant")
    many = note.enqueue_many([("many",)])
    palermo.publish("family.grown", "kim", id="birth")
    write("many", many[0].id)
