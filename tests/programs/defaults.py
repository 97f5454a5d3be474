"""Default jobs, which take messages of programs that know nothing of Palermo."""

import os

from shop import write

import palermo


@palermo.job(queue="event_queue", default=True)
def handle(event_name, payload):
    if event_name == "broken" and not os.path.exists("mended"):
        raise ValueError(payload)
    write("notes", f"{palermo.current_job().job}: {event_name} {payload!r}")


@palermo.job(queue="octets", default=True)
def octets(body: bytes):
    write("notes", f"octets: {body!r}")


@palermo.job(queue="texts", default=True)
def texts(body: str):
    write("notes", f"texts: {body!r}")
