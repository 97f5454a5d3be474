"""Numbers for tuning the pages, one per purpose. Modules read them as `tuning.ROWS`.

Limits of requests are in security/, and sizes of drawings are in the modules that create them.
"""

# -- how much is shown

#: Rows on a page of a list, and the sizes that users of failed jobs can choose, starting with the default.
ROWS, SIZES = 50, (20, 50, 100)

#: Rows of a secondary list, such as a queue's running jobs.
SOME = 20

#: Rows of a list without pages.
MANY = 100

#: Maximum number of rows returned by the API, of suggested names, and of names with their own numbers.
LIMIT = 500

#: Number of a queue's jobs that a filter reads, at first and on request. The last is also the maximum depth of pages in
#: a queue, because reading a page holds all jobs before it.
DEPTHS = (500, 2_500, 10_000)
DEPTH = DEPTHS[-1]

#: Number of bars in the history of a group of failures.
PARTS = 24

#: Number of jobs above which the user has to type the number for confirmation.
UNTYPED = 1_000

#: Maximum length of a text in characters.
TEXT = 2_000

# -- how much is kept

#: Number of jobs that may all be read to find one.
FEW = 2_000

#: Maximum number of small values, such as ids, kept in memory.
CACHED = 10_000

#: Maximum number of failed jobs in the index (the newest), and of bytes of their bodies and frames. Above that, the
#: oldest bodies are dropped and read from the queue when needed, and frames are cut.
MAX_JOBS, MAX_BYTES = 500_000, 256 * 1024 * 1024

# -- how old a value may be, in seconds

#: For values that users watch, for values shared by many users, and for names and ages.
BRIEF, FRESH, RECENT = 0.5, 2.0, 10.0

#: The age above which a value isn't shown; a page waits briefly for the next one instead.
STALE = 30.0

#: How long to remember something to which users may return: briefly, as long as charts show, and for a day.
MINUTE, WINDOW, DAY = 60.0, 600.0, 86_400.0

#: A value is shown for this multiple of the time taken to build it.
SLOW = 10.0

#: A reading that held failed jobs for t seconds isn't repeated for PAUSE * t seconds, but at most PAUSE_PER_JOB seconds
#: per job: on a busy machine even three jobs take seconds, without harm.
PAUSE, PAUSE_PER_JOB = 30.0, 0.05

# -- how long something may take

#: Seconds that a request waits for something that it started, before it shows the progress and before it gives up.
WAIT, LONG_WAIT = 1.0, 5.0

#: Fractions of `publish_timeout` for which a page waits for a newer value and for the first one.
GLANCE, PATIENCE = 0.05, 0.1

#: Number of simultaneous requests to the broker by one request, and of requests that wait for the broker.
AT_ONCE, THREADS = 8, 100
