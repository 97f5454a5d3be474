"""`palermo`, with shorter waits: TIMES is like {"palermo.worker.parent.broker_session.MAX_PAUSE": 2}."""

import importlib
import json
import os

for dotted, seconds in json.loads(os.environ["TIMES"]).items():
    module, _, name = dotted.rpartition(".")
    assert hasattr(importlib.import_module(module), name), dotted
    setattr(importlib.import_module(module), name, seconds)

from palermo.cli import main  # noqa: E402

main()
