"""The worker's parent process: broker session, slot tasks, orders, journal records and shutdown."""
