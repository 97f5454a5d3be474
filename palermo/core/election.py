"""The duties of leaders. A session that has a duty is the leader in it, and no two sessions have the same duty."""

from enum import StrEnum


class Duty(StrEnum):
    """What one session does for all others."""

    #: Scheduled and recurring jobs, the keys of unique jobs, limits and rates.
    MAIN = "main"
    #: The turns of tenants. On RabbitMQ another session can have this duty, so that a busy one slows neither down.
    TENANTS = "tenants"
