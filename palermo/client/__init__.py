"""The client: enqueues jobs and publishes events, and asks for the status and the result of jobs."""
