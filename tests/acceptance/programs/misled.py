"""`palermo`, on a machine whose clock is wrong by the seconds in the file CLOCK, which may change at any time."""

import os
import time
from pathlib import Path

right = time.time
wrong_by = Path(os.environ["CLOCK"])


def misled():
    return right() + float(wrong_by.read_text())


time.time = misled

from palermo.cli import main  # noqa: E402

main()
