"""Palermo's version. pyproject.toml reads it from here, so that no process has to query the installed packages."""

VERSION = "0.1.0"
