"""Jobs declared in a test are forgotten after it, and its default client is closed."""

import pytest


@pytest.fixture(autouse=True)
def _own_world(own_world: None) -> None: ...
