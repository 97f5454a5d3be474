"""The worker's parent process: its broker session, the task of each slot, orders, journal records and shutdown."""
