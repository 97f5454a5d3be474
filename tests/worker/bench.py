"""An executor with jobs of the test's own, and no process."""

import json
from typing import Any

from palermo.contract.serialization import Accept, Serializers
from palermo.core.failure import Failure
from palermo.core.lifecycle import Raised
from palermo.core.message import Message
from palermo.jobs.definition import define
from palermo.jobs.job_registry import Registry
from palermo.worker.child.executor import Executor
from palermo.worker.child.interrupts import Interruptible, Interrupts


class Bench:
    """An executor with jobs of the test's own."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.seen: list[Any] = []
        self.accept = Accept.default()
        self.interrupts: Interruptible = Interrupts()

    def job(self, target: Any, name: str = "job", **options: Any) -> Any:
        self.registry.register(define(target, name=name, **options))
        return target

    def run(self, args: Any = (), *, job: str = "job", **more: Any) -> Any:
        return self.executor().run(self.message(args, job=job, **more))

    def message(self, args: Any = (), *, job: str = "job", **more: Any) -> Message:
        body = more.pop("body", None)
        return Message(id="1", queue="q", job=job, body=json.dumps(args).encode() if body is None else body, **more)

    def executor(self) -> Executor:
        return Executor(
            registry=self.registry,
            serializers=Serializers.default(),
            accept=self.accept,
            worker="pid:1@h/worker-1",
            interrupts=self.interrupts,
            now=lambda: 1_234.9,
            chance=lambda: 0.5,
        )

    def failure(self, *args: Any, **more: Any) -> Failure:
        result = self.run(*args, **more)
        assert isinstance(result, Raised), result
        return result.failure
