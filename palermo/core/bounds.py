"""The bounds of options. Modules that declare jobs use them, so this module imports nothing, to start quickly."""

#: The largest limit, and the largest number of a rate.
MAX_LIMIT = 1_000_000

#: Maximum number of retries that an enqueue or a declaration may request.
MAX_RETRIES = 2**31 - 1
