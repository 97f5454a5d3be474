"""Times in seconds that several parts of this broker share. Others are defined next to their code."""

#: Until the next attempt after an error.
AGAIN = 1.0

#: The same for something that is impossible for a moment, such as reading a stream that is down.
RETRY_EVERY = 0.1

#: Between two checks of a loop that waits for an instant or an event: the wall clock may jump, and events may get lost.
LOOK_EVERY = 0.5

#: The same for checks that aren't urgent.
TIDY_EVERY = 2.0

#: Between two checks of something that rarely changes, and until something unused is dropped.
RARELY = 60.0

#: Between two checks whether another process has finished.
SOON = 0.05

#: Between two polls of a queue that may get a job at any moment.
POLL_EVERY = 0.005

#: Maximum pause before retrying a place that refuses jobs.
STILL_REFUSED = 5.0

#: Until something that failed is used again, if everything works without it.
LEFT_ALONE = 10.0

#: Maximum time for an answer that comes immediately if it comes at all.
ANSWERED_WITHIN = 1.0

#: Maximum time for one check of `palermo doctor`.
CHECKED_WITHIN = 2.0

#: Maximum time for a message to get through RabbitMQ to the reader of its queue.
DELIVERED_WITHIN = 10.0

#: Maximum time to wait for pending work when a part is closed.
LAST_WORDS = 2.0

#: Maximum time that a worker waits to store or read a record about its jobs, before it continues without the record.
STORED_WITHIN = 3.0

#: Time limit of operations that aren't worth a longer wait.
PATIENCE = 5.0

#: Maximum time that a user or a long request waits for another session, the leader, or a silent queue.
LONG_PATIENCE = 30.0

#: Between two log lines about a lasting problem.
SAY_EVERY = 60.0

#: The same while a user or another session waits for its end.
SAY_OFTEN = 10.0

#: Until a held message is requeued or replaced, since RabbitMQ requeues messages held for half an hour.
HELD = 600.0

#: Tolerated difference between the clocks of two machines.
SKEW = 60.0
