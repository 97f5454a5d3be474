"""The client: enqueues jobs, publishes events, and reads the status and result of jobs."""
