"""A worker hook that raises; PALERMO_TEST_HOOK says which."""

import os

import palermo


def broken(context):
    raise RuntimeError("hook is broken")


broken.__name__ = os.environ["PALERMO_TEST_HOOK"]
palermo.hook(broken)
