"""The tools of the soak for some seconds, with the same faults each time, so that they keep working."""

from pathlib import Path

import pytest

from soak.parts import ALL
from soak.run import soak
from tests.rabbitmq_node import Node


@pytest.mark.timeout(600)
def test_every_job_is_accounted_for_after_a_short_soak(module_node: Node, tmp_path: Path) -> None:
    assert soak(tmp_path, module_node, seconds=8.0, seed="suite", parts=ALL, say=print) == []
