"""The numbers with which the pages are tuned, one for each purpose. Modules read them as `tuning.ROWS`.

Limits of requests are in security/, and measures of drawings are where the drawings are made.
"""

# -- how much is shown

#: Rows on a page of a list; and the sizes from which a reader of failed jobs chooses, the default first.
ROWS, SIZES = 50, (20, 50, 100)

#: Rows of a list beside the subject of a page, such as the running jobs of a queue.
SOME = 20

#: Rows of a list that isn't divided into pages.
MANY = 100

#: Maximum number of rows that the API returns at a time, of names that are offered, and of names with figures of their
#: own.
LIMIT = 500

#: Number of jobs of a queue that a filter reads: first, and when a reader asks for more. The last is also the number of
#: jobs that pages lead into a queue, because reading a page of a queue holds all jobs before it.
DEPTHS = (500, 2_500, 10_000)
DEPTH = DEPTHS[-1]

#: Number of bars in the history of a group of failures.
PARTS = 24

#: Above this number of jobs the user has to type the number.
UNTYPED = 1_000

#: Maximum length of a text in characters.
TEXT = 2_000

# -- how much is kept

#: Number of jobs that may all be read for the sake of one.
FEW = 2_000

#: Maximum number of small values, such as ids, that are kept in memory.
CACHED = 10_000

#: Maximum number of failed jobs in the index, the newest, and of bytes of their bodies and of their frames. Beyond the
#: bytes the oldest bodies are dropped, and read from the queue when a user looks at the job; frames are cut.
MAX_JOBS, MAX_BYTES = 500_000, 256 * 1024 * 1024

# -- how old a value may be, in seconds

#: What users watch; what many users share; names and ages.
BRIEF, FRESH, RECENT = 0.5, 2.0, 10.0

#: The age from which a value isn't shown instead of a short wait for the next one.
STALE = 30.0

#: The time for which something is remembered that users may come back to: briefly, as long as charts show, and long.
MINUTE, WINDOW, DAY = 60.0, 600.0, 86_400.0

#: How many times as long as making it took a value is shown.
SLOW = 10.0

#: A reading that held failed jobs for t seconds isn't repeated for PAUSE * t seconds, at most for PAUSE_PER_JOB seconds
#: for each job: on a busy machine a reading of three jobs takes seconds too, and harms nobody.
PAUSE, PAUSE_PER_JOB = 30.0, 0.05

# -- how long something may take

#: Seconds that a request waits for something that was begun: before it shows the progress, and before it gives up.
WAIT, LONG_WAIT = 1.0, 5.0

#: The parts of the setting `publish_timeout` for which a page waits: for a newer value, and for the first one.
GLANCE, PATIENCE = 0.05, 0.1

#: Number of questions that one request asks the broker at a time, and of requests that wait for the broker.
AT_ONCE, THREADS = 8, 100
