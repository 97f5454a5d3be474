"""How fast Palermo is beside the bare client that it is built on. docs/performance.md says how to read the figures."""
