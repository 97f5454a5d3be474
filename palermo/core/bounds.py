"""The bounds of options, for modules that declare jobs: this module imports nothing, so that those start quickly."""

#: The largest limit, and the largest number of a rate.
MAX_LIMIT = 1_000_000

#: The most retries that an enqueue or a declaration may ask for.
MAX_RETRIES = 2**31 - 1
