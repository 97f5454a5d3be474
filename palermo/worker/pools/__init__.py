"""The process, thread and async pools, in the parent process: they fork, limit, kill and replace slots."""
