"""Jobs as a program declares them: their definitions, options and hooks, and the registry. Does not import the
client."""

from palermo.jobs.job_registry import Registry, registry

__all__ = ["Registry", "registry"]
