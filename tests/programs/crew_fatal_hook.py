"""A hook that crashes the process in which it is told of a crash."""

import os

import crew  # noqa: F401

import palermo


@palermo.hook
def on_failure(definition, error, *args, **kwargs):
    os._exit(9)
