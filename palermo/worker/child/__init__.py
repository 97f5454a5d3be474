"""The worker's child processes: the template, which imports the user's modules, and the slots, which run the jobs."""
