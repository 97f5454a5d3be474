"""Publishing: creates queues, publishes messages, waits for confirms, and moves messages between queues."""
