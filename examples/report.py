"""A job that says how far it is, and returns something that is kept.

palermo worker report       in this folder, in one terminal: runs it
python report.py            in another: enqueues it, waits for it, prints what it returned
palermo wait ID             in a third: shows its progress and its lines
"""

import time
from dataclasses import dataclass

import palermo


@dataclass
class Report:
    """The job's result. It is restored as this class, since the annotation of `report` names it."""

    pages: int
    skipped: list[int]


@palermo.job(keep_result=True)
def report(pages: int, pause: float = 0.1) -> Report:
    """Look at pages, one after the other."""
    job = palermo.current_job()
    skipped = []
    for page in palermo.track(range(1, pages + 1), text="page"):
        time.sleep(pause)
        if page % 7 == 0:
            skipped.append(page)
            if job is not None:
                job.log(f"page {page} is empty, skipped")
    return Report(pages, skipped)


if __name__ == "__main__":
    enqueued = report.enqueue(20)
    print(f"enqueued; palermo wait {enqueued.id} shows how far it is")
    print(enqueued.result(timeout=60))
