"""A hook that raises, hangs or crashes its process: PALERMO_TEST_HOOK says which one, and what it does."""

import os
import time

import palermo

name, how = os.environ["PALERMO_TEST_HOOK"].split()


def broken(*args, **kwargs):
    if how == "hangs":
        time.sleep(600)
    if how == "crashes":
        os._exit(9)
    raise RuntimeError("hook is broken")


broken.__name__ = name
palermo.hook(broken)
