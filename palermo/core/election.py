"""The duties of leaders. At most one session, its leader, has a duty."""

from enum import StrEnum


class Duty(StrEnum):
    """Work that one session does for all others."""

    #: Scheduled and recurring jobs, the keys of unique jobs, limits and rates.
    MAIN = "main"
    #: The turns of tenants. On RabbitMQ it can be in another session, so that a busy duty doesn't slow the other down.
    TENANTS = "tenants"
