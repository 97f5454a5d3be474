"""The setup of a system for one workload, told to its processes by an environment variable."""

import json
import os
from dataclasses import asdict, dataclass, replace
from typing import Literal, Self

Pool = Literal["process", "thread", "async"]

#: Holds a Setup as JSON.
VARIABLE = "PEERS_SETUP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The parameters that all systems share."""

    #: Where to enqueue and consume: amqp://…, redis://… or the path of an SQLite file.
    url: str = ""
    #: The one that a job goes to, or all that it goes to in turn.
    queues: tuple[str, ...] = ()
    #: Jobs at a time, in one worker.
    slots: int = 1
    #: The kind of a slot.
    pool: Pool = "process"
    #: The number of jobs that a slot may hold, for systems that have such an option.
    prefetch: int = 1
    #: The type of the queues, where the store is RabbitMQ.
    quorum: bool = False
    #: Whether enqueuing waits until the job is stored. Off only to fill queues for a worker.
    confirm: bool = True

    def changed(self, **fields: object) -> Self:
        """These parameters, with some values changed."""
        return replace(self, **fields)  # type: ignore[arg-type]

    @classmethod
    def here(cls) -> Self:
        """Read the parameters from this process's environment."""
        told = json.loads(os.environ.get(VARIABLE, "{}"))
        return cls(**told | {"queues": tuple(told.get("queues", ()))})

    def environment(self) -> dict[str, str]:
        """The environment that passes the parameters to another process."""
        return {VARIABLE: json.dumps(asdict(self))}
