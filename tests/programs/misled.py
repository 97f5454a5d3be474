"""`palermo`, on a machine whose clock is wrong by the seconds in the file CLOCK, which may change at any time."""

import os
import time
from pathlib import Path

right, right_of = time.time, time.clock_gettime
wrong_by = Path(os.environ["CLOCK"])
#: Those that tell the time of day; the others tell how long something takes.
OF_THE_DAY = {time.CLOCK_REALTIME, 5}  # 5: Linux's CLOCK_REALTIME_COARSE, see palermo.contract.clock


def misled():
    return right() + float(wrong_by.read_text())


def misled_of(clock):
    return right_of(clock) + (float(wrong_by.read_text()) if clock in OF_THE_DAY else 0.0)


time.time, time.clock_gettime = misled, misled_of

from palermo.cli import main  # noqa: E402

main()
