"""A worker's consumer: takes jobs from queues, settles them, and detects jobs that kill their workers."""
