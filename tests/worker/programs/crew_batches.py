import json

import palermo


@palermo.job(batch=10, batch_wait=2.0)
def gather(items: list[tuple[str, int]]) -> None:
    path = items[0][0]
    with open(path, "a") as notes:
        notes.write(json.dumps([number for _, number in items]) + "\n")
    if any(number == "bad" for _, number in items):
        raise ValueError("a bad one")
