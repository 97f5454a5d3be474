"""Publishes messages: makes their queues, waits for confirms, and hands messages over between queues."""
