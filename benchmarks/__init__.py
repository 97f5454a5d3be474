"""Benchmarks of Palermo beside the bare client below it.

benchmarks/README.md says how to read the figures.
"""
