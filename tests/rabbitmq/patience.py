"""Palermo's own patience, made longer for tests about what it does and not about how quickly.

After these bounds it goes on without an answer, as it has to where a worker or the broker is away. A machine that
stands still for seconds is away too, and a test that wants the answer would fail though all is well.
"""

import pytest

from palermo.brokers.rabbitmq import diagnosis
from palermo.brokers.rabbitmq.cluster import worker_control
from palermo.brokers.rabbitmq.consuming import consumer, run_log, steering
from palermo.brokers.rabbitmq.publishing import job_destinations
from palermo.inspector import jobs, workers

#: Shorter than the tests' own bounds: a worker that went while it was asked is still waited for.
SECONDS = 15.0


def have_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, until the test ends."""
    monkeypatch.setattr(worker_control, "ANSWERED_WITHIN", SECONDS)
    monkeypatch.setattr(steering, "STORED_WITHIN", SECONDS)
    monkeypatch.setattr(run_log, "PATIENCE", 2 * SECONDS)
    monkeypatch.setattr(run_log, "STORED_WITHIN", SECONDS)
    monkeypatch.setattr(consumer, "STORED_WITHIN", SECONDS)
    monkeypatch.setattr(job_destinations, "PATIENCE", SECONDS)
    monkeypatch.setattr(diagnosis, "CHECKED_WITHIN", SECONDS)
    # And on every broker.
    monkeypatch.setattr(workers, "PATIENCE", SECONDS)
    for module in (jobs, workers):
        monkeypatch.setattr(module, "PROMPT", SECONDS)
