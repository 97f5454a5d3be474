"""Palermo's version, which pyproject.toml reads from here: a process need not ask what is installed to know it."""

VERSION = "0.1.0"
