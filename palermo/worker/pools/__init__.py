"""The process, thread and async pools, as the parent process sees them: it forks, limits, kills and replaces slots."""
