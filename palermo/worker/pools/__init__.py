"""The process, thread and async pools, in the parent: they fork, limit, kill and replace slots."""
