"""Jobs that enqueue others and publish an event, and note the ids of those."""

import crew

import palermo


@palermo.job
def enqueues(path):
    children = crew.note.enqueue(path + ".child", "x"), fails.enqueue()
    event = palermo.publish("families.grown", path)
    crew.write(path, "\n".join([*(child.id for child in children), f"{event}@aunts"]))


@palermo.job
def fails():
    raise ValueError("wrong")


@palermo.subscribe("families.grown", group="aunts")
def hears(path):
    """Say nothing."""
