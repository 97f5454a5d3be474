"""The tables of the shop."""
