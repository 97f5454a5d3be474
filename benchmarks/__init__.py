"""Benchmarks of Palermo beside the bare client below it.

docs/internals/measurements.md says how to read the figures.
"""
