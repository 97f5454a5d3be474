"""The seconds that several parts of this broker share. Those that mean something else stay beside their code."""

#: Until the next attempt after an error.
AGAIN = 1.0

#: Between two looks of a loop that waits for an instant or for news: the wall clock may jump, and news may be lost.
LOOK_EVERY = 0.5

#: The same where nothing is urgent: whether a part is needed at all, and whether something is to be tidied.
TIDY_EVERY = 2.0

#: Between two questions whether what another process does is over.
SOON = 0.05

#: The longest pause before a place that refuses is tried again, where jobs wait for that.
STILL_REFUSED = 5.0

#: That a part which is closed waits for what is on its way.
LAST_WORDS = 2.0

#: That something may take which is not worth waiting for longer.
PATIENCE = 5.0

#: That a user or a long request waits at most for another session or the leader.
LONG_PATIENCE = 30.0

#: Between two log lines about a problem that lasts.
SAY_EVERY = 60.0

#: After which a message is given back or replaced: RabbitMQ takes back those that are held for half an hour.
HELD = 600.0

#: By which the clocks of two machines may differ.
SKEW = 60.0
