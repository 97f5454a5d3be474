"""Publishing messages: creates their queues, waits for confirms, and hands messages over between queues."""
