"""The jobs that clients of other languages enqueue."""

import json
import os
from pathlib import Path

import palermo


@palermo.job(name="interop.note")
def note(*args: object, **kwargs: object) -> None:
    """Write down what arrived, one line of JSON each, where the test looks for it."""
    current = palermo.current_job()
    assert current is not None
    with Path(os.environ["PALERMO_TEST_TRACE"]).open("a", encoding="utf-8") as notes:
        print(json.dumps({"id": current.id, "args": args, "kwargs": kwargs}), file=notes)


@palermo.job(name="interop.explode")
def explode(amount: int) -> None:
    """Fail with a message and a traceback to be read in the other language."""
    raise ValueError(f"cannot päy {amount}")
