"""A job that writes down what the clocks say as it starts."""

import json
import os
import time
from datetime import datetime

import palermo


@palermo.job
def read():
    seen = {
        "strftime": int(time.strftime("%s")),
        "datetime": datetime.now().timestamp(),
        "time": time.time(),
        "gmtime": time.mktime(time.gmtime()) - time.timezone,
    }
    descriptor = os.open("clocks", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(descriptor, f"{json.dumps([palermo.current_job().id, seen])}\n".encode())
    os.close(descriptor)
