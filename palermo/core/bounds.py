"""The bounds of options. Imports nothing, because every module that declares jobs loads it."""

#: The largest limit, and the largest number of a rate.
MAX_LIMIT = 1_000_000

#: Maximum number of retries that an enqueue or a declaration may request.
MAX_RETRIES = 2**31 - 1
