"""Declared jobs: definitions, options, hooks and the registry. Doesn't import the client."""

from palermo.jobs.job_registry import Registry, registry

__all__ = ["Registry", "registry"]
