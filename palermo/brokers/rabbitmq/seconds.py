"""Times in seconds that several parts of this broker share. Others are defined next to their code."""

#: Until the next attempt after an error.
AGAIN = 1.0

#: Between two checks of a loop that waits for an instant or for news: the wall clock may jump, and news may get lost.
LOOK_EVERY = 0.5

#: The same for non-urgent checks: whether a part is needed at all, and whether something should be tidied.
TIDY_EVERY = 2.0

#: Between two checks whether another process has finished.
SOON = 0.05

#: Maximum pause before retrying a refusing place for which jobs wait.
STILL_REFUSED = 5.0

#: Maximum time that closing a part waits for pending work.
LAST_WORDS = 2.0

#: Time limit of operations that are not worth a longer wait.
PATIENCE = 5.0

#: Maximum time that a user or a long request waits for another session or the leader.
LONG_PATIENCE = 30.0

#: Between two log lines about a lasting problem.
SAY_EVERY = 60.0

#: After which a message is requeued or replaced: RabbitMQ requeues messages that are held for half an hour.
HELD = 600.0

#: Tolerated difference between the clocks of two machines.
SKEW = 60.0
