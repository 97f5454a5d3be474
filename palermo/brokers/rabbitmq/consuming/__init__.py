"""A worker's consumer: takes jobs from queues, settles them, and recognizes jobs that kill their workers."""
