"""Workflows on RabbitMQ: workers write how steps have ended into the leader's ledger, and the leader decides."""
